"""How a backend is drawn: colour, dash and marker, the same on the whole page."""

from collections.abc import Iterable
from dataclasses import dataclass

# At least 3:1 against the page, which is white in light mode and DARK_PAGE in dark mode.
LIGHT_PAGE, DARK_PAGE = "#ffffff", "#14171a"
LIGHT = (
    "#5a6068",
    "#0072b2",
    "#c44e00",
    "#00805c",
    "#aa3377",
    "#4b3bb0",
    "#8a6a00",
    "#c0142e",
    "#3d7a12",
    "#0f7f8c",
)
DARK = (
    "#b4bac2",
    "#5ab4f0",
    "#f58d4b",
    "#3ccba0",
    "#e88bc4",
    "#a79df5",
    "#dcbc45",
    "#ff7c84",
    "#93cc5c",
    "#4fd0de",
)
DASHES = (
    (1, 0),
    (7, 3),
    (2, 2),
    (8, 3, 2, 3),
    (4, 4),
    (12, 3),
    (8, 2, 2, 2, 2, 2),
    (1, 3),
    (5, 1),
    (12, 2, 4, 2),
)
# SVG paths in the square from -1 to 1.
MARKERS = (
    "M-0.8,0A0.8,0.8,0,1,1,0.8,0A0.8,0.8,0,1,1,-0.8,0Z",
    "M-0.75,-0.75L0.75,-0.75L0.75,0.75L-0.75,0.75Z",
    "M0,-1L1,0.75L-1,0.75Z",
    "M0,-1.1L0.95,0L0,1.1L-0.95,0Z",
    "M0,1L1,-0.75L-1,-0.75Z",
    "M-0.35,-1L0.35,-1L0.35,-0.35L1,-0.35L1,0.35L0.35,0.35L0.35,1L-0.35,1L-0.35,0.35L-1,0.35L-1,-0.35L-0.35,-0.35Z",
    "M1,0L-0.75,1L-0.75,-1Z",
    "M-1,-0.55L-0.55,-1L0,-0.45L0.55,-1L1,-0.55L0.45,0L1,0.55L0.55,1L0,0.45L-0.55,1L-1,0.55L-0.45,0Z",
    "M-1,0L0.75,1L0.75,-1Z",
    "M-1,-0.4L1,-0.4L1,0.4L-1,0.4Z",
    "M-0.4,-1L0.4,-1L0.4,1L-0.4,1Z",
)


@dataclass(frozen=True)
class Style:
    colour: str  # a CSS variable, so that one rendering serves light and dark
    dash: tuple[int, ...]
    marker: str


def styles(backends: Iterable[str]) -> dict[str, Style]:
    """One style a backend, in the order given. Colours and markers are coprime in number: 110 pairs differ."""
    return {
        backend: Style(
            f"var(--series-{index % len(LIGHT)})",
            # Shifted by one each round: colours and dashes would repeat in step.
            DASHES[(index + index // len(LIGHT)) % len(DASHES)],
            MARKERS[index % len(MARKERS)],
        )
        for index, backend in enumerate(dict.fromkeys(backends))
    }


def palette(colours: tuple[str, ...]) -> str:
    """The colours as CSS declarations."""
    return " ".join(f"--series-{index}: {colour};" for index, colour in enumerate(colours))
