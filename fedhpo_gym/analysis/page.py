"""The frame of the report: one HTML page that needs no other file."""

from __future__ import annotations

from string import Template

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: #fff; color: #1a1a1a;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.25rem; line-height: 1.25; margin: 0 0 0.25rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.25rem 0 0.25rem; }
p { margin: 0.4rem 0; max-width: 44rem; }
a { color: #0b4f8a; }
section { border-top: 2px solid #1a1a1a; margin-top: 2rem; padding-top: 1rem; }
.meta, figcaption { color: #4a4a4a; font-size: 0.9rem; overflow-wrap: anywhere; }
figure { margin: 1rem 0; max-width: 34rem; }
.figures { display: grid; gap: 0 2rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.25rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #c8c8c8; padding: 0.3rem 0.7rem 0.3rem 0; text-align: left;
  white-space: nowrap; }
td.number, th.number { text-align: right; padding-right: 0.9rem; }
.scroll td:first-child, .scroll th:first-child { position: sticky; left: 0; background: #fff; }
td.best { font-weight: 700; }
summary { cursor: pointer; margin: 0.6rem 0 0.25rem; }
.answer p:first-child { font-size: 1.1rem; font-weight: 700; }
code { font: 0.9em ui-monospace, "Liberation Mono", Menlo, Consolas, monospace; }
@media print { body { max-width: none; } figure, tr { break-inside: avoid; } }
"""

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header>
<h1>$title</h1>
<p class="meta">$meta</p>
$contents
</header>
<main>
$answers
$sections
$unfinished
<section id="reading">
<h2>How to read this</h2>
<p>Runs of one problem have the same id, variant, system and budget; which fidelity an agent asks
for is its own affair, and each runs once per seed. The incumbent is the trial of lowest validation
loss among those of the highest fidelity that was tried so far, where fidelity is rounds times
client sample rate (Wang et al., 2022, section 4.1); of equals, the first. So its loss may rise
when an agent first reaches a higher fidelity. $rule A trial counts from the
moment it is paid for. Test results are those of the incumbent at the end of the run.</p>
<p>$files</p>
</section>
</main>
</body>
</html>
""")

ANSWER = Template("""<section id="$anchor">
<h2>$heading</h2>
<div class="answer">
$words
</div>
$first
<div class="figures">
$figures
</div>
$body
</section>
""")

FIGURE = Template("""<figure id="$anchor">
$svg
<figcaption><b>$title.</b> $caption</figcaption>
</figure>
""")

TABLE = Template("""<h3>$title</h3>
<p class="meta">$note</p>
<div class="scroll">
$table
</div>
""")

SECTION = Template("""<section id="$anchor">
<h2>$heading</h2>
<p class="meta">$settings</p>
<div class="figures">
$figures
</div>
<h3>Final results</h3>
<p class="meta">Mean ± standard deviation over runs; the best mean of each column is bold.</p>
<div class="scroll">
$results
</div>
$best
</section>
""")

UNFINISHED = Template("""<section id="unfinished">
<h2>What did not finish</h2>
<p>These runs left no record, so nothing above knows of them. An agent that fails where it would do
badly looks better than it is.</p>
<div class="scroll">
$table
</div>
</section>
""")

BEST = Template("""<details>
<summary>Best configuration</summary>
<p>$winner</p>
<div class="scroll">
$configuration
</div>
</details>
""")
