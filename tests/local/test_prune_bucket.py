"""`trainyard prune` on buckets."""

from __future__ import annotations

from tests.local.object_stores import Store
from tests.pruned_storage import NOW, Storage

from trainyard.storage import storage
from trainyard_control.local import retention


def test_old_runs_and_their_outputs_go_from_a_bucket_and_the_rest_can_be_read(store: Store) -> None:
    kept = Storage(f"{store.uri}/pruned")
    kept.run(1, version=1)
    kept.run(2)
    kept.run(3)
    attempt = kept.uri("train/3333/.attempts/0123456789abcdef/model.keras")
    storage.write_text(attempt, "half of it")
    plan = retention.plan(kept.root, keep=1, now=NOW)
    removals, output = plan.removals, kept.uri("train/2222")
    kept.begin("20260112-000000-aaaa")
    assert retention.remove(
        kept.root, next(each for each in removals if each.uri(kept.root) == output), plan.runs["digits"]
    ) == ("digits: 20260112-000000-aaaa has begun meanwhile, so its outputs stay")
    assert storage.committed(output)
    storage.remove(kept.uri("runs/20260112-000000-aaaa"))
    assert [removal.name for removal in removals] == [
        "runs/20260102-000000-aaaa",
        *sorted([*kept.outputs(2), "train/3333"]),
    ]
    kept.prune(keep=1)
    assert storage.read_text(attempt) is None and kept.plan(keep=1) == []
    for name in (*kept.outputs(1), *kept.outputs(3)):
        assert storage.require(kept.uri(name)).files
    with storage.lease(kept.uri("train/2222")):
        pass
