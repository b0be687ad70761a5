"""A model's identity is its bytes, and a different model is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from batch_assets.engine.model_files import digest_model, verify_model
from batch_assets.errors import ModelError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    (root / "extra").mkdir(parents=True)
    (root / "config.json").write_text("{}")
    (root / "weights.bin").write_bytes(bytes(range(256)) * 5000)
    (root / "extra" / "template.jinja").write_text("{{ messages }}")
    return root


def test_the_manifest_lists_every_file(model: Path) -> None:
    """Names are relative, sorted, and reach into sub-folders; sizes are in bytes."""
    manifest = digest_model(model)
    assert [(file.name, file.size) for file in manifest.files] == [
        ("config.json", 2),
        ("extra/template.jinja", 14),
        ("weights.bin", 1_280_000),
    ]


def test_the_place_is_no_part_of_the_identity(model: Path, tmp_path: Path) -> None:
    """A moved directory has the same digest."""
    before = digest_model(model)
    assert digest_model(model.rename(tmp_path / "elsewhere")) == before


def test_hidden_files_do_not_count(model: Path) -> None:
    """Notes that tools leave behind, as hidden files or folders, change nothing."""
    before = digest_model(model)
    (model / ".prepared.json").write_text("{}")
    (model / ".cache").mkdir()
    (model / ".cache" / "lock").touch()
    assert digest_model(model) == before
    verify_model(model, before)


def test_links_are_followed(model: Path, tmp_path: Path) -> None:
    """A directory of symbolic links, like a hub's cache, has the digest of the files behind them."""
    links = tmp_path / "links"
    links.mkdir()
    for name in ("config.json", "weights.bin", "extra"):
        (links / name).symlink_to(model / name)
    assert digest_model(links) == digest_model(model)


def test_a_link_to_a_parent_folder_ends_the_walk(model: Path) -> None:
    """A circle of links does not hang, and adds nothing."""
    before = digest_model(model)
    (model / "extra" / "loop").symlink_to(model)
    assert digest_model(model) == before


def test_a_dangling_link_is_an_error(model: Path) -> None:
    """A file that cannot be read is named, not left out."""
    (model / "tokenizer.json").symlink_to("gone.json")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        digest_model(model)


@pytest.mark.case("C30")
def test_one_flipped_bit_is_refused_by_name(model: Path) -> None:
    """The error names the file, what was pinned, what was found, and what to do."""
    pinned = digest_model(model)
    data = bytearray((model / "weights.bin").read_bytes())
    data[700_000] ^= 1
    (model / "weights.bin").write_bytes(data)
    with pytest.raises(ModelError, match=r"weights\.bin was pinned as .*, found is .*pin the job again"):
        verify_model(model, pinned)


def test_another_size_is_refused_by_name(model: Path) -> None:
    """A truncated file is found by its size."""
    pinned = digest_model(model)
    (model / "weights.bin").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"weights\.bin was pinned as 1,280,000 bytes.* found is 5 bytes"):
        verify_model(model, pinned)


def test_missing_and_added_files_are_refused_by_name(model: Path) -> None:
    """Neither fewer nor more files than pinned are accepted."""
    pinned = digest_model(model)
    (model / "adapter.bin").touch()
    with pytest.raises(ModelError, match=r"adapter\.bin was pinned as no such file"):
        verify_model(model, pinned)
    (model / "adapter.bin").unlink()
    (model / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json was pinned as .* found is no such file"):
        verify_model(model, pinned)


@pytest.mark.parametrize("exists", [False, True])
def test_no_model_says_how_to_get_it(tmp_path: Path, exists: bool) -> None:
    """A missing or empty directory points to `make model`."""
    root = tmp_path / "model"
    if exists:
        root.mkdir()
    with pytest.raises(ModelError, match="make model"):
        digest_model(root)
