"""Charts as plain Plotly figures: `data` and `layout`. The page adds fonts and colours, light or dark.

A colour that begins with "@" is the name of one of the page's colours.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Figure = dict[str, Any]

MOST_POINTS = 400  # of a curve: more cannot be seen
MOST_IN_LEGEND = 24
MOST_NAMED = 5000  # cells of a matrix that say their classes when they are pointed at
BINS = 50
COLOURS = 10  # of classes, in report.js
SHAPES = ("circle", "square", "diamond", "triangle-up", "star", "cross", "x", "hexagram")
MUCH_LARGER = 20  # times: a curve at the other's twentieth looks like zero


def bars(names: Sequence[str], counts: Sequence[int], last_is_unknown: bool) -> Figure:
    """How many images got each answer, the most frequent on top."""
    colours = ["@known"] * len(names)
    if last_is_unknown and names:
        colours[-1] = "@unknown"
    order = np.argsort(counts, kind="stable")
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [counts[i] for i in order],
        "y": [*range(len(order))],  # not names: two that are cut may look the same
        "marker": {"color": [colours[i] for i in order]},
        "text": [str(counts[i]) for i in order],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertext": [plain(names[i], 80) for i in order],
        "hovertemplate": "%{hovertext}: %{x}<extra></extra>",
    }
    ticks = {"tickvals": [*range(len(order))], "ticktext": [plain(names[i], 28) for i in order]}
    layout = {
        "height": 90 + 22 * len(names),
        "yaxis": {**ticks, "type": "linear", "automargin": True, "showgrid": False},
        "xaxis": {"title": {"text": "images"}},
        "bargap": 0.25,
    }
    return {"data": [trace], "layout": layout}


def score_histogram(scores: np.ndarray, threshold: float, is_unknown: np.ndarray | None) -> Figure:
    """Unknown scores, with a line at the threshold; by true kind if that is known."""
    edges = np.linspace(0, 1, BINS + 1)
    centres = ((edges[1:] + edges[:-1]) / 2).round(4).tolist()
    if is_unknown is None:
        kinds = [("all images", "@known", np.ones(len(scores), dtype=bool))]
    else:
        kinds = [("truly known", "@known", ~is_unknown), ("truly unknown", "@unknown", is_unknown)]
    data = []
    for name, colour, rows in kinds:
        counts, _ = np.histogram(scores[rows].clip(0, 1), edges)
        trace = {"type": "bar", "name": name, "x": centres, "y": counts.tolist(), "marker": {"color": colour}}
        data.append({**trace, "hovertemplate": "score %{x:.2f}: %{y} images<extra>" + name + "</extra>"})
    line = {"type": "line", "x0": threshold, "x1": threshold, "y0": 0, "y1": 1, "yref": "paper"}
    layout = {
        "height": 300,
        "barmode": "stack",
        "bargap": 0.05,
        "xaxis": {"title": {"text": "unknown score"}, "range": [-0.01, 1.01]},
        "yaxis": {"title": {"text": "images"}},
        "shapes": [{**line, "line": {"color": "@ink", "width": 2, "dash": "dot"}}],
        "showlegend": is_unknown is not None,
    }
    return {"data": data, "layout": layout}


def curves(
    lines: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    title: str,
    in_percent: bool = False,
    may_be_logarithmic: bool = False,
    height: int = 320,
) -> Figure:
    """Numbers by step; on a logarithmic axis, if it may be, where the large ones would press the small ones flat."""
    data: list[dict[str, Any]] = []
    for name in names:
        points = [(line["step"], line[name]) for line in lines if _is_number(line.get(name))]
        keep = np.unique(np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)) if points else np.arange(0)
        scale = 100 if in_percent else 1
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(points) < 30 else "lines",
                "name": plain(name, 40),
                "x": [points[i][0] for i in keep],
                "y": [float(f"{scale * points[i][1]:.6g}") for i in keep],
            }
        )
    values = [value for trace in data for value in trace["y"]]
    y_axis: dict[str, Any] = {"title": {"text": plain(title, 40)}, "automargin": True}
    if may_be_logarithmic and values and 0 < MUCH_LARGER * min(values) < max(values):
        y_axis |= {"type": "log", "title": {"text": f"{plain(title, 40)} (logarithmic)"}}
    axes = {"xaxis": {"title": {"text": "step", "standoff": 8}, "automargin": True}, "yaxis": y_axis}
    return {"data": data, "layout": {"height": height, "showlegend": len(names) > 1, **axes}}


def confusion(counts: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> Figure:
    """True classes by row, answers by column; colours are shares of a row."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    trace = {
        "type": "heatmap",
        "z": (100 * share).round(1).tolist(),
        "colorscale": "@scale",
        "zmin": 0,
        "zmax": 100,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"title": {"text": "% of row"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "%{z} % of the row<extra></extra>",
    }
    if counts.size <= MOST_NAMED:
        names = [[f"{plain(row, 24)} → {plain(column, 24)}" for column in columns] for row in rows]
        template = "%{text}<br>%{customdata} images, %{z} % of the row<extra></extra>"
        trace |= {"text": names, "customdata": counts.tolist(), "hovertemplate": template}
    size = max(11, min(22, 900 // max(len(rows), 1)))

    def axis(names: Sequence[str], title: str) -> dict[str, Any]:
        shown = range(0, len(names), max(1, len(names) // 60))
        ticks = {"tickvals": [*shown], "ticktext": [plain(names[i], 20) for i in shown], "showgrid": False}
        beside = {"text": title, "standoff": 12}  # from the names, however long they are
        return {**ticks, "title": beside, "automargin": True, "zeroline": False}

    layout = {
        "height": 160 + size * len(rows),
        "xaxis": {**axis(columns, "answer"), "tickangle": -50},
        "yaxis": {**axis(rows, "true class"), "autorange": "reversed"},
    }
    return {"data": [trace], "layout": layout}


def feature_map(
    plane: np.ndarray, is_source: np.ndarray, answers: np.ndarray, names: Sequence[str], titles: Sequence[str]
) -> Figure:
    """A point for each image: the source hollow, in the colour of its class; the target full, in that of its answer.

    More classes than colours differ by shape.

    Args:
        plane: (N, 2).
        answers: (N,) ids in `names`; the last is "unknown".
        titles: of each image, to show beside its picture.
    """
    colours = [f"@class{i}" for i in range(len(names) - 1)] + ["@unknown"]
    shapes = [SHAPES[i // COLOURS % len(SHAPES)] for i in range(len(names) - 1)] + [SHAPES[0]]
    tiles = np.arange(len(plane))

    def trace(rows: np.ndarray, name: str, **marker: Any) -> dict[str, Any]:
        return {
            "type": "scatter",
            "mode": "markers",
            "name": plain(name, 28),
            "x": plane[rows, 0].round(4).tolist(),
            "y": plane[rows, 1].round(4).tolist(),
            "customdata": [[int(tile), plain(titles[tile], 90)] for tile in tiles[rows]],
            "hoverinfo": "none",
            "marker": {"size": 7, "opacity": 0.85, **marker},
        }

    source = np.flatnonzero(is_source)
    data = []
    if len(source):
        of_source = [colours[answers[i]] for i in source]
        data.append(
            trace(source, "source images", color=of_source, symbol=[f"{shapes[answers[i]]}-open" for i in source])
        )
    for answer in np.unique(answers[~is_source]):
        rows = np.flatnonzero(~is_source & (answers == answer))
        data.append(trace(rows, str(names[answer]), color=colours[answer], symbol=shapes[answer]))
    bare = {"showticklabels": False, "zeroline": False, "title": {"text": ""}}
    return {
        "data": data,
        "layout": {
            "height": 560,
            "xaxis": bare,
            "yaxis": bare,
            "hovermode": "closest",
            "showlegend": len(data) <= MOST_IN_LEGEND,
        },
    }


def cost_against(rows: Sequence[tuple[str, float, float, float]], metric: str) -> Figure:
    """Rows of a grid: (name, seconds, metric in per cent, its standard deviation over runs)."""
    data = [
        {
            "type": "scatter",
            "mode": "markers+text",
            "name": plain(name, 40),
            "x": [round(seconds, 2)],
            "y": [round(value, 2)],
            "text": [plain(name, 24)],
            "textposition": "top center",
            "cliponaxis": False,
            "marker": {"size": 12, "color": f"@class{number}"},
            "hovertemplate": plain(name, 60)
            + f"<br>%{{x}} s a run<br>{metric} %{{y}} ± {deviation:.1f}<extra></extra>",
        }
        for number, (name, seconds, value, deviation) in enumerate(rows)
    ]
    axes = {
        "xaxis": {"title": {"text": "seconds a run (mean, logarithmic)"}, "type": "log", "dtick": "D2"},
        "yaxis": {"title": {"text": f"{metric} (mean of all runs, per cent)"}},
    }
    return {"data": data, "layout": {"height": 460, "showlegend": False, **axes}}


def plain(text: str, most: int) -> str:
    """Text that Plotly shows as it is: it reads a few tags and its own %{…} in any text. Cut if it is long."""
    shown = text if len(text) <= most else text[: most - 1] + "…"
    shown = shown.encode("utf-8", "replace").decode()
    for letter, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("%{", "%\u200b{")):
        shown = shown.replace(letter, entity)
    return shown


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
