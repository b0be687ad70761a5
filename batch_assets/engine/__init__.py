"""Tokens: engines that turn prompts into answers, and the model files and encoders they need.

Nothing here knows of shards, leases or storage. vllm is imported by `vllm_engine` alone.
"""
