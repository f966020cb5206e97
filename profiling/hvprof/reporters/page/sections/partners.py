"""Point to point: who sends to whom, over which distance, and who waits for whom."""

from __future__ import annotations

from hvd_ext.units import counted, format_bytes, format_seconds
from hvprof.analysis.waiting.partners import Partners, partners
from hvprof.reporters.page import svg
from hvprof.reporters.page.sections.base import Figure, Page, Section, Table

_LISTED = 12


def section(page: Page) -> Section:
    """The matrix of messages, and tables by distance and of the longest waits."""
    found = partners(page.analysis.recording)
    if found is None:
        return Section("Point to point", [])
    return Section("Point to point", _matrix(found), [_distances(found), _waits(found)])


def _matrix(found: Partners) -> list[Figure]:
    if not found.sent:
        return []
    names, sums = found.groups()
    each = "rank" if len(names) == found.size else "group of ranks"
    caption = f"Payload that the {each} of a row sends to that of a column."
    if found.unknown[0]:
        caption += (
            f" Left out: {counted(found.unknown[0], 'message')} "
            f"({format_bytes(found.unknown[1])}), as a rank counts its first 256 partners."
        )
    by_distance = found.distances()
    distance, _, most = by_distance[0]
    total = sum(one[2] for one in by_distance)
    near = f": {100 * most / total:.0f} % goes over a distance of {distance}" if total else ""
    return [
        Figure(
            "partners",
            f"Messages from rank to rank{near}",
            caption,
            svg.matrix(
                "messages from rank to rank", names, sums, lambda value: format_bytes(int(value))
            ),
        )
    ]


def _distances(found: Partners) -> Table:
    by_distance = found.distances()
    total = sum(one[2] for one in by_distance) or 1
    rows = [
        [distance, messages, format_bytes(message_bytes), f"{100 * message_bytes / total:.3g} %"]
        for distance, messages, message_bytes in by_distance[:_LISTED]
    ]
    caption = (
        "The distance of two ranks is that of their numbers, the shorter way round. Neighbors "
        "are mostly on one host: place ranks that exchange most next to each other."
    )
    return Table("By distance", ["distance", "messages", "payload", "share"], rows, caption)


def _waits(found: Partners) -> Table:
    rows = [
        [
            one.rank,
            f"{'receives from' if one.direction == 'from' else 'sends to'} {one.partner}",
            format_seconds(one.blocked_s),
            one.messages,
            format_bytes(one.message_bytes),
        ]
        for one in found.waits[:_LISTED]
    ]
    caption = (
        "How long calls of a rank were blocked on messages of a partner, transfer included. A wait "
        "for several requests counts in equal parts for those it receives from."
    )
    names = ["rank", "partner", "blocked", "messages", "payload"]
    return Table("Longest waits", names, rows, caption)
