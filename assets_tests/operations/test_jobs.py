"""Job folders: each mistake is one error that names file, key, what was found and what is valid."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from assets_tests.factories import OUTPUT_SCHEMA, PROMPT, make_job, make_records
from assets_tests.homes import Home
from batch_assets.errors import ModelError, SnapshotError, SpecError, VersionError
from batch_assets.operations.check import check
from batch_assets.operations.jobs import PACKAGED, load_job, load_jobs
from batch_assets.operations.pin import pin
from batch_assets.operations.work import work


def edit(job: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the attributes of a written job."""
    document = yaml.safe_load((job / "defs.yaml").read_text())
    change(document["attributes"])
    (job / "defs.yaml").write_text(yaml.safe_dump(document))


SPEC_MISTAKES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "unknown key": (
        lambda a: a.update(shard_sise=5),
        r"Unknown key 'shard_sise' \(found 5\): did you mean 'shard_size'\? Valid keys here are job, label, snapshot",
    ),
    "unknown nested key": (
        lambda a: a["snapshot"].update(record_key="id"),
        r"Unknown key 'snapshot\.record_key'.*did you mean 'record_id'\? Valid keys here are path, format, version",
    ),
    "missing key": (lambda a: a.pop("decoding"), "Key 'decoding' is missing; it is required"),
    "wrong type": (lambda a: a.update(shard_size="many"), r"Key 'shard_size': .*integer.*\(found 'many'\)"),
    "out of range": (lambda a: a.update(workers=0), r"Key 'workers': .*greater than or equal to 1 \(found 0\)"),
    "bad name": (lambda a: a.update(job="My Job"), r"Key 'job': .*pattern.*\(found 'My Job'\)"),
    "no model": (lambda a: a.update(engine={"kind": "vllm"}), "model is missing; only a job with engine.kind scripted"),
    "script without scripted": (
        lambda a: a.update(engine={"kind": "vllm", "script": "s.yaml"}),
        "script is for engine kind 'scripted' only",
    ),
    "no such prompt": (
        lambda a: a.update(prompt={"file": "other.md"}),
        r"key 'prompt.file': found 'other.md', but there is no",
    ),
    "no such script": (
        lambda a: a["engine"].update(script="other.yaml"),
        "key 'engine.script': found 'other.yaml', but there is no file",
    ),
    "no such field": (
        lambda a: a["gate"].update(drift={"field": "kind"}),
        "key 'gate.drift.field': found 'kind'; the output schema's fields are category, summary, entities",
    ),
    "no golden file": (
        lambda a: a["gate"].update(evaluation={"accuracy_min": 0.5}),
        "key 'gate.evaluation.golden': there is no file",
    ),
}


@pytest.mark.parametrize("mistake", SPEC_MISTAKES)
def test_a_mistake_in_the_spec_is_explained(tmp_path: Path, mistake: str) -> None:
    """The error names the file and the key, and says what is valid."""
    change, message = SPEC_MISTAKES[mistake]
    job = make_job(tmp_path)
    edit(job, change)
    with pytest.raises(SpecError, match=message) as caught:
        load_job(job)
    assert str(job / "defs.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


FILE_MISTAKES = {
    "yaml": ("defs.yaml", "type: [", r"defs\.yaml is not valid YAML"),
    "type": ("defs.yaml", "type: other\nattributes: {}", "key 'type': found 'other'; it must be batch_assets.assets"),
    "top level": ("defs.yaml", "type: x\nattribute: {}", "unknown key 'attribute'; valid keys are type, attributes"),
    "no attributes": (
        "defs.yaml",
        "type: batch_assets.assets.BatchInferenceJob",
        "key 'attributes' must hold the job's keys",
    ),
    "prompt": ("prompt.md", "Sort it. {{ body }}", r"prompt\.md needs exactly one line '<!-- record -->'"),
    "schema syntax": ("output_schema.py", "class Output(", r"output_schema\.py does not load: SyntaxError"),
    "schema model": ("output_schema.py", "x = 1", r"must define one pydantic model named Output; found: none"),
    "schema type": (
        "output_schema.py",
        OUTPUT_SCHEMA + "    value: int | str\n",
        r"output_schema\.py: field 'value': .* mixes several types",
    ),
    "schema clash": ("output_schema.py", OUTPUT_SCHEMA + "    acl: str\n", "field 'acl' clashes with the column 'acl'"),
    "encoding": ("prompt.md", b"\xff\xfe", r"prompt\.md is not UTF-8"),
}


@pytest.mark.parametrize("mistake", FILE_MISTAKES)
def test_a_mistake_in_a_file_is_explained(tmp_path: Path, mistake: str) -> None:
    """The error names the file that is wrong."""
    name, content, message = FILE_MISTAKES[mistake]
    job = make_job(tmp_path)
    (job / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SpecError, match=message):
        load_job(job)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"golden\.jsonl, line 1: needs an object with the keys 'record_id' and 'category'"),
        ('{"record_id": "R-1"}', "KeyError"),
        (
            '{"record_id": "R-1", "category": "weather"}',
            "category is 'weather'; valid values are billing, bug, question",
        ),
        ("", "holds no golden label"),
    ],
)
def test_a_bad_golden_label_is_explained(tmp_path: Path, line: str, message: str) -> None:
    """The error names file and line."""
    job = make_job(tmp_path, golden={"R-00001": "bug"})
    (job / "golden.jsonl").write_text(line + "\n")
    with pytest.raises(SpecError, match=message):
        load_job(job)


def test_two_jobs_with_one_name_are_refused(home: Home) -> None:
    """A name is one job; the error names both folders."""
    make_job(home.jobs, name="one")
    edit(make_job(home.jobs, name="two"), lambda a: a.update(job="one"))
    with pytest.raises(SpecError, match=r"two/defs\.yaml: key 'job': 'one' is the name of .*one already"):
        load_jobs(home.deployment.settings)


def test_an_unknown_job_is_answered_with_the_known_ones(home: Home) -> None:
    """Jobs outside of the package are listed beside the packaged one."""
    make_job(home.jobs, name="mine")
    with pytest.raises(SpecError, match="There is no job 'theirs'; the jobs are support_tickets, mine"):
        home.deployment.job("theirs")


def test_the_packaged_job_is_valid() -> None:
    """The example that ships loads, with its golden labels."""
    job = load_job(PACKAGED / "support_tickets")
    assert len(job.golden()) >= 120
    assert job.category_field == "category"


# --- pinning -------------------------------------------------------------------------------------


def test_a_template_that_names_no_column_of_the_snapshot_is_refused(home: Home) -> None:
    """The error names the prompt file, the column and the columns there are; nothing is pinned."""
    make_job(home.jobs, prompt=PROMPT.replace("body", "text"))
    with pytest.raises(
        SpecError, match=r"prompt\.md: the record template names column 'text'.*Its columns are record_id, subj"
    ):
        home.pinned()
    assert home.deployment.ledger.plans.list() == []


def test_an_instruction_longer_than_the_cap_is_refused(home: Home) -> None:
    """No record would fit, so nothing is pinned."""
    make_job(home.jobs, decoding={"input_tokens_max": 10})
    with pytest.raises(SpecError, match=r"the instruction alone takes"):
        home.pinned()


def test_a_missing_model_is_refused(home: Home) -> None:
    """The error names the directory that was looked for."""
    make_job(home.jobs, engine={"kind": "vllm"}, model={"path": "no-such-model"})
    with pytest.raises(ModelError, match="no-such-model"):
        home.pinned()


EDITS: dict[str, Callable[[Path], object]] = {
    "prompt": lambda job: (job / "prompt.md").write_text(PROMPT.replace("Sort", "Put")),
    "schema": lambda job: (job / "output_schema.py").write_text(OUTPUT_SCHEMA.replace("one sentence", "a sentence")),
    "cap": lambda job: edit(job, lambda a: a["decoding"].update(input_tokens_max=1999)),
    "ladder": lambda job: edit(job, lambda a: a["decoding"].update(output_tokens_max=[7, 9])),
    "seed": lambda job: edit(job, lambda a: a["decoding"].update(seed=1)),
    "stop": lambda job: edit(job, lambda a: a["decoding"].update(stop=["x"])),
    "format": lambda job: edit(job, lambda a: a.update(prompt={"format": "plain"})),
    "rows": lambda job: edit(job, lambda a: a["snapshot"].update(rows=3)),
    "labels": lambda job: edit(job, lambda a: a["snapshot"].update(access_labels=[])),
}
OPERATIONAL: dict[str, Callable[[Path], object]] = {
    "workers": lambda job: edit(job, lambda a: a.update(workers=9)),
    "shard_size": lambda job: edit(job, lambda a: a.update(shard_size=3)),
    "lease": lambda job: edit(job, lambda a: a.update(lease_s=99, renew_every_s=9)),
    "engine": lambda job: edit(job, lambda a: a["engine"].update(sequences_max=3, restarts_max=1)),
    "gate": lambda job: edit(job, lambda a: a["gate"].update(dead_letters={"rate_max": 0.5})),
    "comment": lambda job: (job / "defs.yaml").write_text("# note\n" + (job / "defs.yaml").read_text()),
}


@pytest.mark.parametrize("name", EDITS)
def test_editing_what_is_pinned_makes_a_new_version(home: Home, name: str) -> None:
    """And undoing the edit finds the first version again."""
    job = make_job(home.jobs)
    first = home.pinned()
    EDITS[name](job)
    second = home.pinned()
    assert second.job_version != first.job_version
    make_job(home.jobs)
    assert home.pinned().job_version == first.job_version


@pytest.mark.parametrize("name", OPERATIONAL)
def test_editing_operational_settings_keeps_the_version(home: Home, name: str) -> None:
    """How a version is run is not what it is; its shard boundaries stay as first pinned."""
    job = make_job(home.jobs)
    first = home.pinned()
    OPERATIONAL[name](job)
    again = pin(home.deployment, home.deployment.job("tiny"))
    assert (again.job_version, again.is_new) == (first.job_version, False)
    assert again.version.shard_size == 5


def test_moving_the_job_folder_keeps_the_version(home: Home, tmp_path: Path) -> None:
    """The same content elsewhere is the same version."""
    make_job(home.jobs)
    first = home.pinned()
    (home.jobs / "tiny").rename(home.jobs / "moved")
    assert home.pinned().job_version == first.job_version


def test_an_edited_version_file_is_refused_everywhere(home: Home) -> None:
    """A version file is written once: any edit stops pinning, planning and running with the remedy."""
    make_job(home.jobs)
    registered = home.pinned()
    path = home.deployment.objects.path(home.deployment.version_files.key("tiny", registered.job_version))
    path.write_text(path.read_text().replace('"shard_size": 5', '"shard_size": 6'))
    with pytest.raises(VersionError, match="Version files are never edited: change the job folder and pin again"):
        home.pinned()
    path.unlink()
    with pytest.raises(VersionError, match=r"is missing\. Restore it"):
        home.deployment.version(registered)


# --- planning ------------------------------------------------------------------------------------


def test_duplicate_ids_fail_the_plan_by_name(home: Home) -> None:
    """The error names the ids and their rows, and the version stays unplanned."""
    rows = [{"record_id": name, "subject": "s", "body": "b", "record_class": "c", "acl": "a"} for name in "abca"]
    make_job(home.jobs, records=rows, shard_size=2)
    with pytest.raises(SnapshotError, match=r"1 record ids are not unique \(record_id: 'a' in rows 0 and 3\)"):
        home.pinned()
    assert not home.deployment.resolve("tiny").planned


def test_null_ids_fail_the_plan_by_row(home: Home) -> None:
    """Every record needs an id; the error says which rows have none."""
    rows = [{"record_id": name, "subject": "s", "body": "b", "record_class": "c", "acl": "a"} for name in ("a", None)]
    make_job(home.jobs, records=rows)
    with pytest.raises(
        SnapshotError, match=r"1 records have no record id \(record_id is null; rows 1, counted from 0\)"
    ):
        home.pinned()


# --- snapshots that change or move ---------------------------------------------------------------


def test_a_change_that_keeps_the_size_is_noticed(home: Home) -> None:
    """Same bytes in number, other content: refused before any work."""
    job = make_job(home.jobs)
    path = job / "records.parquet"
    pq.write_table(pq.read_table(path), path, compression="none", use_dictionary=False)
    registered = home.pinned()
    path.write_bytes(path.read_bytes().replace(b"body of record 3", b"body of record 4"))
    with pytest.raises(SnapshotError, match="has other content than was pinned"):
        work(home.deployment, registered)


def test_touching_a_file_is_no_change(home: Home) -> None:
    """A new modification time makes us look closer, and the content is the same."""
    job = make_job(home.jobs)
    registered = home.pinned()
    os.utime(job / "records.parquet", (1, 1))
    work(home.deployment, registered)
    assert home.status(registered)["results"] == 20


def test_a_moved_snapshot_is_found_again_by_pinning(home: Home) -> None:
    """The same content elsewhere is the same version, and its workers read it there."""
    job = make_job(home.jobs)
    registered = home.pinned()
    (job / "records.parquet").rename(job / "elsewhere.parquet")
    with pytest.raises(SnapshotError, match=r"records\.parquet is missing.*set snapshot\.path to where it is"):
        work(home.deployment, registered)
    edit(job, lambda a: a["snapshot"].update(path="elsewhere.parquet"))
    assert home.pinned().job_version == registered.job_version
    work(home.deployment, registered)
    assert home.status(registered)["results"] == 20


def test_a_record_id_column_is_not_confused_with_one_in_other_case(home: Home) -> None:
    """SQL does not tell `ID` from `id`, so a snapshot with both is refused."""
    rows = [{**row, "RECORD_ID": "x"} for row in make_records(3)]
    make_job(home.jobs, records=rows)
    with pytest.raises(SnapshotError, match="differ only in upper and lower case"):
        home.pinned()


@pytest.mark.parametrize("name", ["history", "a__b"])
def test_names_that_the_warehouse_uses_are_refused(tmp_path: Path, name: str) -> None:
    """`history` and anything with two underscores are tables and views of ours."""
    job = make_job(tmp_path)
    edit(job, lambda a: a.update(job=name))
    with pytest.raises(SpecError, match="cannot be named 'history'"):
        load_job(job)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """YAML's second value would win in silence."""
    job = make_job(tmp_path)
    (job / "defs.yaml").write_text((job / "defs.yaml").read_text() + "  shard_size: 7\n")
    with pytest.raises(SpecError, match="the key 'shard_size' stands twice"):
        load_job(job)


def test_golden_labels_have_the_type_of_their_field(home: Home) -> None:
    """A boolean label is compared as a boolean, and a label of another type is refused by line."""
    schema = "from pydantic import BaseModel\n\n\nclass Output(BaseModel):\n    ok: bool\n"
    gate = {"evaluation": {"field": "ok", "accuracy_min": 0.2}}  # one label shows no more than 0.21
    script = {"records": {"R-00001": {"text": '{"ok": true}'}}}
    job = make_job(home.jobs, output_schema=schema, script=script, gate={})
    (job / "golden.jsonl").write_text('{"record_id": "R-00001", "ok": true}\n')
    edit(job, lambda a: a.update(gate=gate))
    registered, _ = home.worked()
    (evaluation,) = check(home.deployment, registered, only=["evaluation"])
    assert evaluation.passed, evaluation
    (job / "golden.jsonl").write_text('{"record_id": "R-00001", "ok": "perhaps"}\n')
    with pytest.raises(SpecError, match=r"golden\.jsonl, line 1: ok is 'perhaps': Input should be a valid boolean"):
        load_job(job)
