"""The page's style: narrow and wide screens, light and dark, print."""

STYLE = """\
:root { color-scheme: light dark; --line: #0003; --soft: #0000000a; --link: #0b57b0; --under: Canvas; --card: #f5f5f5; }
/* Palette of the plots: the colours of drawing.PALETTE, and lighter ones on black. */
@media (prefers-color-scheme: dark) { :root { --line: #fff4; --soft: #ffffff12; --link: #8ab8ff; --card: #222;
  --c0: #5cb8f2; --c1: #ffc04d; --c2: #35d6a4; --c3: #f0a3cc; --c4: #8fd3ff; --c5: #ff8b45; --c6: #c4c4c4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; background: Canvas;
  color: CanvasText; overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.2; }
h2 { margin-top: 2.5rem; }
a { color: var(--link); }
nav ul { padding-left: 1.2rem; }
.source { opacity: 0.75; font-size: 0.9rem; margin: 0; }
.answer { font-size: 1.15rem; font-weight: 600; }
.scroll, figure { overflow-x: auto; }
/* A shadow at the right edge, covered by what moves with the table when its end is reached. */
.scroll, figure { background: linear-gradient(to left, var(--under) 40%, transparent) right / 4rem 100% no-repeat local,
  linear-gradient(to left, var(--line), transparent) right / 1.5rem 100% no-repeat scroll, var(--under); }
.wide::after { content: "scroll sideways for more"; display: none; font-size: 0.8rem; opacity: 0.75; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.95rem; overflow-wrap: normal; }
caption { text-align: left; padding: 0.5rem 0; font-weight: 600; }
caption span { position: sticky; left: 0; display: inline-block; max-width: calc(min(72rem, 100vw) - 2rem); }
th, td { padding: 0.3rem 0.8rem 0.3rem 0; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
td:last-child { white-space: normal; min-width: 10rem; }
th.number, td.number { text-align: right; }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }
figure { --under: var(--card); margin: 1rem 0; padding: 0.5rem; border-radius: 0.5rem; display: flex;
  flex-direction: column-reverse; justify-content: flex-end; min-width: 0; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; } .figures svg { width: 100% !important; }
/* A card is as wide as its plot; three are side by side or one below the other, without a hole between them. */
figure:only-child, section > figure { max-width: min(41rem, 100%); width: fit-content; }
@media (min-width: 72rem) { .figures:has(> :nth-child(3):last-child) { grid-template-columns: repeat(3, 1fr); } }
@media (max-width: 72rem) { .figures:has(> :nth-child(3):last-child) { grid-template-columns: minmax(0, 41rem); } }
figcaption { font-weight: 600; padding: 0.25rem; }
pre { overflow-x: auto; padding: 0.75rem; background: var(--soft); border-radius: 0.5rem; white-space: pre-wrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1rem 1rem; font-size: 0.9rem; }
dd { margin: 0; }
:focus-visible { outline: 2px solid var(--link); }
@media (max-width: 40rem) { .wide::after { display: block; } body { padding: 0.6rem; } figure { padding: 0.25rem; } }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-left: 1rem; } }
@media print {
  :root { color-scheme: light; --line: #0006; --soft: transparent; }
  body { max-width: none; font-size: 9pt; padding: 0; }
  .scroll, figure { overflow: visible; background: none; } .wide::after { display: none; }
  figure svg { min-width: 0 !important; } .figures { grid-template-columns: 1fr 1fr !important; }
  th, td { white-space: normal; } nav { display: none; }
  figure, tr, section > p { break-inside: avoid; } thead { display: table-header-group; }
  h2, caption { break-after: avoid; }
}
"""
