"""Services that tests of clusters run."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from forage import app


@app.service(resreq="cpu=1")
class Worker:
    """Tells where it is, puts values and dies."""

    def node(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def pid(self) -> int:
        return os.getpid()

    def put(self, size: int, key: str | None = None) -> app.Ref:
        return app.put(np.arange(size), key)

    def die(self) -> None:
        os._exit(3)

    def node_after(self, path: str) -> str:
        """Say where this call began, then finish once a file is there."""
        with open(f"{path}.begun", "a") as file:
            file.write(f"{self.node()}\n")
        while not os.path.exists(path):
            time.sleep(0.02)
        return self.node()


@app.service(resreq="cpu=1", autoscale=False, warmup=2)
class Rank:
    """A member of a process group."""

    def sum_of_ranks(self) -> tuple[float, str]:
        """All-reduce each rank's number over gloo; returns the sum and this rank's node."""
        import torch
        import torch.distributed as dist

        here = app.context()
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{here.rendezvous}",
            rank=here.rank,
            world_size=here.size,
        )
        total = torch.tensor(float(here.rank + 1))
        dist.all_reduce(total)
        dist.destroy_process_group()
        return float(total), Worker.node(self)  # type: ignore[arg-type]

    def generation(self) -> int:
        return app.context().generation

    def wait(self) -> Any:
        time.sleep(60)
