"""Explains the end of a local run from the files in its folder."""

from __future__ import annotations

from trainyard import events
from trainyard.contract.artifacts.gate import REFUSED, recorded_refusal
from trainyard.errors import ConfigurationError, ExitCode, did_you_mean, known_code
from trainyard.graph import OUTPUTS
from trainyard.report.local_runs import recipes_by_run
from trainyard.storage import storage
from trainyard_control.cluster.explanation import advice
from trainyard_control.cluster.pace import verdict


def explain_folder(root: str, run: str) -> tuple[str, ExitCode]:
    """Return one sentence on the run `run` below the storage `root`, the newest if it is '', and its exit code.

    Raises `ConfigurationError` if there is no such run.
    """
    folders = {name: storage.join(root, recipe, "runs", name) for name, recipe in sorted(recipes_by_run(root).items())}
    if not folders or (run and run not in folders):
        newest = ", ".join(list(folders)[-5:]) or "none"
        raise ConfigurationError(f"no run '{run or 'at all'}' in {root}. There: {newest}.{did_you_mean(run, folders)}")
    name = run or list(folders)[-1]
    record = storage.read_json(storage.join(folders[name], "run.json"))
    if record and not record.get("failure") and not record.get("exit_code"):
        refused = recorded_refusal(record)
        ended = f"has ended: {REFUSED} ({refused})" if refused else "has succeeded"
        return f"{name} {ended}. Report: {record['report']}", ExitCode.DONE
    sentence, code = _failure(name, folders[name], str(record.get("failure") or ""), record.get("exit_code"))
    return f"{sentence} Report: {record['report']}" if record.get("report") else sentence, code


def _failure(name: str, folder: str, sentence: str, number: int | None) -> tuple[str, ExitCode]:
    """Return the sentence of the last step that wrote a log, with what to do."""
    files = set(storage.children(folder))
    steps = [step for step in OUTPUTS if f"{step}.log" in files]
    if not steps and not sentence:
        return f"{name} has not begun a step", ExitCode.TRANSIENT
    event = None
    if steps:
        log = storage.join(folder, f"{steps[-1]}.log")
        text = storage.read_text(log, errors="replace") or ""
        event = events.failure(text)
        if event:
            number, sentence = event.code, event.message
        if not sentence:
            pace = verdict(text, one_machine=True).sentence
            pace_note = f" ({pace})" if pace else ""
            return f"{name} is in {steps[-1]}{pace_note}, or was killed there; log: {log}", ExitCode.TRANSIENT
    code = known_code(number, ExitCode.BUG)
    place = f" in {steps[-1]}" if event else ""
    parts = [f"{name} failed{place}: {sentence.rstrip('.')}", advice(code, "run again")]
    return ". ".join(filter(None, parts)) + ".", code
