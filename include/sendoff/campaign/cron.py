"""Cron expressions, checked as far as that needs no calendar: each value in its range, and days that some year has."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sendoff.campaign.field_types import did_you_mean, problem, shown

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
LONGEST = 80
"""Most characters of a schedule; Airflow keeps a description of it, which is much longer."""

_CHARACTERS = re.compile(r"[A-Za-z0-9*/,\-#?]+", re.ASCII)
_ITEM = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[0-9]+))?", re.ASCII)
_DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # in the longest of its years


@dataclass(frozen=True, slots=True)
class _Field:
    """One of the five fields. ``words``: names of its values, from the least on. ``special``: what no number says."""

    name: str
    least: int
    most: int
    words: tuple[str, ...] = ()
    special: re.Pattern[str] | None = None

    def values(self, text: str) -> set[int]:
        """Give the values that a field names; a special one counts as all of them."""
        everything = set(range(self.least, self.most + 1))
        if text == "?" and self.special:
            return everything
        return set().union(*(self._of_item(item, everything) for item in text.lower().split(",")))

    def _of_item(self, item: str, everything: set[int]) -> set[int]:
        if self.special and self.special.fullmatch(item):
            return everything
        parts = _ITEM.fullmatch(item)
        if parts is None:
            allowed = f"{self._range()}, alone or with cron's signs * , - /"
            raise problem(f"{self.name} {shown(item)}", allowed)
        step = int(parts["step"] or 1)
        if step == 0:
            raise problem(f"step 0 of {self.name}", "1 or more")
        if parts["first"] is None:
            return set(range(self.least, self.most + 1, step))
        first = self._number(parts["first"])
        alone = self.most if parts["step"] else first  # 5/10 runs on to the end
        last = self._number(parts["last"]) if parts["last"] else alone
        if first <= last:
            return set(range(first, last + 1, step))
        return {each for each in everything if each >= first or each <= last}  # 22-2 goes past the end

    def _number(self, text: str) -> int:
        number = self.least + self.words.index(text) if text in self.words else -1
        if text.isdigit():
            number = int(text)
        if not self.least <= number <= self.most:
            raise problem(f"{self.name} {text if text.isdigit() else shown(text)}", self._range())
        return number

    def _range(self) -> str:
        words = f" or {self.words[0]} to {self.words[-1]}" if self.words else ""
        return f"{self.least} to {self.most}{words}"


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY = _Field("day", 1, 31, special=re.compile(r"l|(?:0?[1-9]|[12][0-9]|3[01])w"))
_MONTH = _Field("month", 1, 12, _MONTHS)
_WEEKDAY = _Field("weekday", 0, 7, _WEEKDAYS, re.compile(rf"l[0-7]|(?:[0-7]|{'|'.join(_WEEKDAYS)})#[1-5]"))


def checked_cron(schedule: str) -> str:
    """Give a schedule back that Airflow can follow; raises an error that says what is wrong with any other."""
    if schedule in PRESETS:
        return schedule
    fields = schedule.split()
    if len(fields) != 5 or not all(map(_CHARACTERS.fullmatch, fields)):
        found = shown(schedule) if len(fields) in (1, 5) else f"{len(fields)} fields"
        raise problem(
            found + did_you_mean(schedule, PRESETS),
            f"a cron expression of five fields, or one of {', '.join(PRESETS)}",
        )
    if len(schedule) > LONGEST:
        raise problem(shown(schedule), f"at most {LONGEST} characters")
    minute, hour, day, month, weekday = fields
    _MINUTE.values(minute)
    _HOUR.values(hour)
    days, months = _DAY.values(day), _MONTH.values(month)
    _WEEKDAY.values(weekday)
    # Where both are given, a day of the month or a day of the week is enough.
    if weekday in ("*", "?") and min(days) > max(_DAYS_OF_MONTH[each - 1] for each in months):
        raise problem(f"day {day} in month {month}, which never comes", "a day that its months have")
    return schedule
