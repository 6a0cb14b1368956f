"""The Ray engine: executors are actors on a cluster, gangs are placement groups.

Ray places processes, moves the project and the cached values, and knows which nodes there are.
Who gets an executor is decided above, as on the embedded engine, and messages go over connections
of the app's own, so that a call costs no more than it does there.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import ray
from ray.util import remove_placement_group

from forage.app.engines.base import Demand, Event, Launch, Lost, Site
from forage.app.engines.processes import dismiss_reaper, log_tail
from forage.app.engines.ray import actors, cluster
from forage.app.engines.ray.channels import EXECUTOR, WITNESS, News, Switchboard
from forage.app.engines.ray.demand import DemandBoard
from forage.app.engines.ray.member import Member
from forage.app.engines.ray.seat import Seat, Unfit
from forage.app.engines.witness import KILL
from forage.app.errors import AppError
from forage.app.packaging import Package
from forage.app.placement import Node
from forage.app.resources import Resources
from forage.app.wire import frame

_LOOK_S = 1.0  # how often the cluster's nodes are looked at
_GRACE_S = 3.0  # between the first sign of an executor's end and pressing it
_LAST_WORD_S = 15.0  # what a witness has to tell it all, once Ray says that its executor is gone
_CLOSE_S = 10.0


class RayEngine:
    """See `forage.app.engines.base.Engine`."""

    name = "ray"

    def __init__(
        self, site: Site, package: Package, keeper: Any, reaper: subprocess.Popen[bytes]
    ) -> None:
        self._site = site
        self._reaper = reaper
        self._keeper = keeper
        self._requirements = () if site.install else package.requirements
        self._nodes = cluster.nodes(site.resources)
        self.grows = site.resources is None and cluster.grows()
        self._casting = actors.Casting(package, site.token)
        self._board = Switchboard(ray.util.get_node_ip_address())
        self._demand = DemandBoard()
        self._members: dict[int, Member] = {}
        self._forming: dict[str, list[Member]] = {}  # gangs whose members are being started
        self._news: deque[Callable[[list[Event]], None]] = deque()  # from other threads
        self._ended = threading.Event()
        keeper.stay.remote().future().add_done_callback(lambda _: self._post(self._keeper_gone))
        self._watcher = threading.Thread(target=self._watch_nodes, name="forage-nodes", daemon=True)
        self._watcher.start()

    @property
    def nodes(self) -> Sequence[Node]:
        """The living nodes, the driver's own first."""
        return list(self._nodes.values())

    def refuses(self, need: Resources, *, gang: bool) -> str:
        """Ray gives members of a group fractions of the same GPU, which a gang can't share."""
        if gang and need.milligpu % 1000:
            return "on Ray the members of a gang need whole GPUs"
        return ""

    def want(self, demands: Sequence[Demand]) -> None:
        """Show it to the autoscaler, if there is one."""
        if self.grows:
            self._demand.show(demands)

    def start(self, launch: Launch) -> None:
        """Ask Ray for an actor; for those of a gang once the last is known."""
        member = Member(launch, self._site.logs / f"{launch.name}.log")
        self._members[launch.serial] = member
        if not launch.gang:
            self._cast(member, actors.on_node(self._node_id(launch)))
            return
        forming = self._forming.setdefault(launch.gang, [])
        forming.append(member)
        if len(forming) == launch.size:
            del self._forming[launch.gang]
            launches = [each.launch for each in forming]
            group = actors.gang_group(launches, [self._node_id(each) for each in launches])
            for index, each in enumerate(forming):
                each.group = group
                self._cast(each, actors.in_group(group, index))

    def send(self, serial: int, message: Any) -> None:
        """Send a message, once the executor has called back."""
        member = self._members.get(serial)
        if member is None:
            return
        if member.link is None:
            member.unsent.append(frame(message))
        else:
            self._board.send(member.link, frame(message))

    def kill(self, serial: int, reason: str = "") -> None:
        """Have Ray kill the executor; its witness sees to its descendants."""
        member = self._members.get(serial)
        if member is None:
            return
        member.reason = member.reason or reason
        member.ends()
        if member.actor is not None:
            ray.kill(member.actor)

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait for messages, for news of Ray, and for executors' ends."""
        events: list[Event] = []
        for news in self._board.poll(self._bounded(timeout)):
            self._hear(news, events)
        while self._news:
            self._news.popleft()(events)
        self._bury(events)
        return events

    def wake(self) -> None:
        """Ring the bell."""
        self._board.wake()

    def close(self) -> None:
        """Kill all executors, wait for their witnesses, and leave the cluster."""
        self._ended.set()
        for serial in list(self._members):
            self.kill(serial)
        deadline = time.monotonic() + _CLOSE_S
        while self._members and time.monotonic() < deadline:
            with suppress(AppError):  # nothing more can fail
                self.poll(0.1)
        self._board.close()
        self._watcher.join()  # after the shutdown its question would connect anew
        ray.shutdown()
        dismiss_reaper(self._reaper)

    # Executors

    def _node_id(self, launch: Launch) -> str:
        return next(id for id, node in self._nodes.items() if node.name == launch.placement.node)

    def _cast(self, member: Member, where: Any) -> None:
        launch = member.launch
        host, port = self._board.address
        seat = Seat(
            serial=launch.serial,
            marker=f"FORAGE_EXECUTOR={self._site.token}.{launch.serial}",
            host=host,
            port=port,
            greetings=(
                self._board.greeting(EXECUTOR, launch.serial),
                self._board.greeting(WITNESS, launch.serial),
            ),
            mem=launch.need.mem,
            requirements=self._requirements,
        )
        member.actor, end = self._casting.start(launch, seat, where)
        end.future().add_done_callback(partial(self._actor_ended, launch.serial))

    def _hear(self, news: News, events: list[Event]) -> None:
        channel, data = news
        member = self._members.get(channel.serial)
        if member is None:
            self._board.hang_up(channel)
        elif data is None:
            self._connected(member, news)
        elif channel.role == WITNESS:
            member.hear_witness(data)
        elif not data:
            member.ends()
        else:
            for message in member.frames.feed(data):
                if isinstance(message, Unfit):
                    self.kill(member.launch.serial, message.reason)
                else:
                    events.append(Event(member.launch.serial, message))

    def _connected(self, member: Member, news: News) -> None:
        if news.channel.role == WITNESS:
            member.witness = news.channel
            return
        member.link = news.channel
        for data in member.unsent:
            self._board.send(news.channel, data)
        member.unsent.clear()

    def _bury(self, events: list[Event]) -> None:
        """Report the executors that have ended for certain, and press those that linger."""
        now = time.monotonic()
        for serial, member in list(self._members.items()):
            if member.ending_since is None:
                continue
            late = member.gone is not None and now > member.ending_since + _LAST_WORD_S
            if member.is_over or late:
                self._remove(member)
                events.append(Event(serial, Lost(member.exit, log_tail(member.log))))
            elif now > member.ending_since + _GRACE_S and not member.pressed:
                member.pressed = True
                member.reason = member.reason or "closed its connection"
                ray.kill(member.actor)
                if member.witness is not None:
                    self._board.send(member.witness, KILL)

    def _remove(self, member: Member) -> None:
        del self._members[member.launch.serial]
        for channel in (member.link, member.witness):
            if channel is not None:
                self._board.hang_up(channel)
        group = member.group
        if group is not None and not any(m.group is group for m in self._members.values()):
            remove_placement_group(group)

    def _bounded(self, timeout: float | None) -> float | None:
        if self._news:
            return 0.0
        if any(member.ending_since is not None for member in self._members.values()):
            return _GRACE_S / 4 if timeout is None else min(timeout, _GRACE_S / 4)
        return timeout

    # What Ray says, in threads of its own

    def _post(self, news: Callable[[list[Event]], None]) -> None:
        self._news.append(news)
        self.wake()

    def _actor_ended(self, serial: int, future: Any) -> None:
        error = future.exception()
        gone = cluster.reason(error) if error is not None else ""
        self._post(lambda _: self._note_gone(serial, gone))

    def _note_gone(self, serial: int, gone: str) -> None:
        member = self._members.get(serial)
        if member is not None:
            member.gone = gone
            member.ends()

    def _watch_nodes(self) -> None:
        while not self._ended.wait(_LOOK_S):
            try:
                found = cluster.nodes(self._site.resources)
                self.grows = self._site.resources is None and (self.grows or cluster.grows())
            except Exception as error:  # whatever it is, the cluster can't be asked any more
                self._post(partial(self._cluster_gone, cluster.reason(error)))
                return
            if found != self._nodes:
                self._post(partial(self._use_nodes, found))

    def _use_nodes(self, found: dict[str, Node], events: list[Event]) -> None:
        """Take the nodes that there are now; executors of a lost one are lost with it."""
        self._nodes = found
        names = {node.name for node in found.values()}
        for serial, member in list(self._members.items()):
            node = member.launch.placement.node
            if node not in names:
                ray.kill(member.actor)
                self._remove(member)
                events.append(Event(serial, Lost(f"node {node} was lost", log_tail(member.log))))

    def _keeper_gone(self, events: list[Event]) -> None:
        if not self._ended.is_set():
            raise AppError("the actor that keeps cached values is gone")

    def _cluster_gone(self, why: str, events: list[Event]) -> None:
        if not self._ended.is_set():
            raise AppError("the Ray cluster is gone", why=why)
