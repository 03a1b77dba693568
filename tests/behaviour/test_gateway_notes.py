"""The queue between calls and their record."""

import threading

from holdfast.gateway.notes import Notes


def test_what_does_not_fit_is_dropped_and_counted_and_nobody_waits() -> None:
    """The one who works on notes is stuck; those who bring them are not."""
    stuck, go_on = threading.Event(), threading.Event()
    worked: list[int] = []

    def work(note: int) -> None:
        stuck.set()
        go_on.wait(10)
        worked.append(note)

    notes = Notes(work, notes_max=3, bytes_max=100)
    assert notes.put(0, 1)
    assert stuck.wait(10)
    assert [notes.put(number, 1) for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert notes.dropped == 1
    go_on.set()
    assert notes.wait_until_empty(10)
    assert worked == [0, 1, 2, 3]
    assert not notes.put(5, 101)
    assert notes.put(6, 100)
    notes.close()
    assert worked == [0, 1, 2, 3, 6]
    assert not notes.put(7, 1)


def test_a_queue_that_was_never_used_closes() -> None:
    notes: Notes[int] = Notes(lambda note: None)
    assert notes.wait_until_empty(1)
    notes.close()
    assert notes.dropped == 0
