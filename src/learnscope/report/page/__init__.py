"""The report as one HTML file: a payload of numbers and words, and a front end that draws it. Needs no torch."""
