"""What happened in a round."""

from __future__ import annotations

import json
from typing import Any


class Round(dict[str, Any]):
    """A round as a dict of plain values, which loggers take as it is. The keys:

    - ``round``, ``step``, ``epoch``, ``seconds``: where the run stands after it;
    - ``workers``: the numbers of those who took part;
    - ``weights``: by worker, its weight in the mean (where tensors have weights of their own, their mean);
    - ``tensor_weights``: one list of weights for all tensors, or one for each tensor, in the order of ``workers``;
    - ``pull``, ``loss``, ``rate``, ``bytes``: the pull toward the new centre, the mean training loss, the learning rate, bytes sent;
    - ``reasons``: sentences that say why anything differs from the plain formula;
    - ``faults``: sentences on workers that were lost, and other faults;
    - ``was_replaced``: this worker's parameters were replaced, and the state of its optimizer dropped.
    """

    @classmethod
    def parse(cls, text: str, events: list[str], was_replaced: bool) -> Round:
        """The round of a session's answer."""
        event = json.loads(text)
        at, mixed = event["at"], (event["mixed"] or [{}])[-1]
        workers, weights = mixed.get("workers", []), mixed.get("weights", [])
        means = [sum(row[i] for row in weights) / len(weights) for i in range(len(workers))] if weights else []
        faults = [e["what"] for e in map(json.loads, events) if e.get("event") == "fault"]
        return cls(
            round=at["rounds"],
            step=at["steps"],
            epoch=at["epochs"],
            seconds=at.get("elapsed", 0.0),
            workers=workers,
            weights=dict(zip(workers, means)),
            tensor_weights=weights,
            pull=mixed.get("pull"),
            loss=event["loss"],
            rate=event["rate"],
            bytes=event["bytes"],
            reasons=mixed.get("reasons", []),
            faults=faults,
            was_replaced=was_replaced,
        )
