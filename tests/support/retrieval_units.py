"""Search units: handmade ones and hypothesis strategies."""

from hypothesis import strategies as st

from holdfast.retrieval.units import SearchUnit

_WORDS = ("pdf", "form", "merge", "release", "deploy", "review", "table", "chart", "invoice", "weather", "the", "a")
phrases = st.lists(st.sampled_from(_WORDS), max_size=6).map(" ".join)
anything = st.text(max_size=30)
units = st.builds(
    SearchUnit,
    id=st.sampled_from([f"unit-{number}" for number in range(8)]),
    name=st.sampled_from(_WORDS),
    description=phrases | anything,
    triggers=st.lists(phrases, max_size=2).map(tuple),
    content=phrases | st.sampled_from(_WORDS).map(lambda name: f"see `{name}`"),
)
distinct_units = st.lists(units, max_size=8, unique_by=lambda unit: unit.id)

OFFICE = (
    SearchUnit("forms", "fill-forms", "Fill in the fields of a PDF", ("fill in a form",), "Read `mergePages` first."),
    SearchUnit("merge", "mergePages", "Put the pages of several documents into one"),
    SearchUnit("release", "release-notes", "Tell users what a new version brings", ("write the changelog",)),
    SearchUnit("weather", "forecast", "Rain, wind and sun of the next days"),
)
