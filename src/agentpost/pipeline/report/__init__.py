"""What the tables say, for people: `gather` makes a `Report` of them, `terminal` and `page` show it.

model.py      the report as values, which is also what `-o json` prints
gather.py     the gold tables, as Arrow, to a report
charts.py     lines, bars and sparks as SVG, without any library
page.py       one HTML file that needs nothing else
terminal.py   the same for a terminal
"""
