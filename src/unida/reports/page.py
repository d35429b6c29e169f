"""From numbers and pictures to one HTML file that needs nothing else: style, script and Plotly are inside.

Plotly's script is packed (4.8 MB → 2.0 MB as text); the browser unpacks it. Names of files and classes may hold
anything: the templates escape all of them.
"""

import base64
import functools
import gzip
import importlib.util
from typing import Any

from unida.errors import UserError


def require_packages() -> None:
    """Refuse to begin if a package of the extra [report] is missing."""
    for name in ("jinja2", "plotly"):
        if importlib.util.find_spec(name) is None:
            raise UserError(f'a report needs {name}, which is not installed: pip install "unida[report]"')


def render(template: str, context: dict[str, Any]) -> str:
    """The page. Half letters, which file names may hold, are shown as question marks."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("unida.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(template).render(plotly=_packed_plotly(), **context)
    return page.encode("utf-8", "replace").decode()


@functools.cache
def _packed_plotly() -> str:
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
