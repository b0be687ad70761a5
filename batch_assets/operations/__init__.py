"""The verbs: pin, plan, work, check, publish. The CLI and Dagster both call these and add nothing."""
