"""The charts of a launch as SVG to stand in a page: they take the page's font, and its colours by day and by night.

Matplotlib draws them with colours that stand for names; each becomes a CSS variable, which :data:`COLOURS` defines for
light and dark. One unit is one CSS pixel, so that ``width`` is the width at which the text is as large as the page's.
Each chart has a title and a description for those who do not see it; nothing is shown that a table cannot say.

.. code-block:: text

    sheet ....... what every chart is drawn on, and its colours
    sums ........ flow: from rows to verdicts
    groups ...... verdicts_by: the verdicts of each group
    arrivals .... timeline: when post-backs came
    intervals ... differences: the intervals of a comparison
"""

from sendoff.report.charts.canvas import COLOURS, NARROW, WIDE, css
from sendoff.report.charts.intervals import differences
from sendoff.report.charts.stacked_bars import verdicts_by
from sendoff.report.charts.timeline import timeline
from sendoff.report.charts.waterfall import flow

__all__ = ["COLOURS", "NARROW", "WIDE", "css", "differences", "flow", "timeline", "verdicts_by"]
