"""How every page looks: light and dark, for the screen and for paper."""

STYLE = """
:root { --ink:#1d2433; --soft:#5c667a; --faint:#8b94a7; --line:#e3e7ee; --paper:#f6f7fa; --card:#fff; --good:#1a7f5a;
  --bad:#b83227; --warn:#96600b; --accent:#3757c9; --accent-soft:#e6ebfb; --accent-rgb:55,87,201; --bad-rgb:184,50,39; }
@media (prefers-color-scheme: dark) { :root { --ink:#e6e9f0; --soft:#a3acbf; --faint:#79839a; --line:#2c3342;
  --paper:#12151c; --card:#1a1f29; --good:#4cc38a; --bad:#ff7b6e; --warn:#e5b04c; --accent:#8aa2ff;
  --accent-soft:#232c4a;
  --accent-rgb:122,146,255; --bad-rgb:255,110,97; } }
* { box-sizing:border-box }
body { margin:0; background:var(--paper); color:var(--ink);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif }
main { max-width:1120px; margin:0 auto; padding:36px 24px 72px }
h1 { font-size:26px; line-height:1.25; margin:0; letter-spacing:-.015em; overflow-wrap:anywhere }
h2 { font-size:17px; margin:40px 0 12px; letter-spacing:-.005em }
h3 { font-size:14px; margin:0 0 8px }
.sub { color:var(--soft); margin:6px 0 22px }
.panel { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:16px 18px }
.tiles { display:grid; grid-template-columns:minmax(300px,1.7fr) repeat(auto-fit,minmax(140px,1fr)); gap:12px }
.tile .name { color:var(--soft); font-size:13px }
.tile .value { font-size:26px; font-weight:650; letter-spacing:-.02em }
.tile .note { color:var(--soft); font-size:12.5px } .tile.main .value { font-size:42px; line-height:1.15 }
.tile .value.bad { color:var(--bad) }
.change { font-size:15px; font-weight:600; margin-left:8px; color:var(--soft); letter-spacing:0 }
.change.up { color:var(--good) } .change.down { color:var(--bad) }
.bar { position:relative; height:10px; border-radius:5px; background:var(--line); margin:7px 0 5px }
.bar i { position:absolute; top:0; bottom:0; left:0; border-radius:5px; background:var(--accent); opacity:.85 }
.bar b { position:absolute; top:50%; height:2px; margin-top:-1px; background:var(--ink) }
.bar b::before,.bar b::after { content:""; position:absolute; top:-4px; height:10px; width:2px; background:var(--ink) }
.bar b::before { left:0 } .bar b::after { right:0 }
.bar u { position:absolute; top:-4px; bottom:-4px; width:2px; margin-left:-1px; background:var(--warn) }
.bar s { position:absolute; top:-4px; bottom:-4px; width:0; border-left:2px dotted var(--soft); margin-left:-1px }
.scroll { overflow-x:auto } table { border-collapse:collapse; width:100%; font-size:14px }
th { text-align:left; color:var(--soft); font-weight:550; font-size:12.5px; padding:6px 10px; white-space:nowrap }
td { padding:7px 10px; border-top:1px solid var(--line); vertical-align:middle }
.r { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap } td .bar { min-width:150px }
.grid { display:grid; grid-template-columns:repeat(auto-fit,minmax(430px,1fr)); gap:12px; align-items:start }
.matrix td { text-align:center; font-variant-numeric:tabular-nums; border:1px solid var(--line);
  min-width:38px; padding:6px; white-space:nowrap }
.matrix th { text-align:center; padding:6px 8px } .matrix th.row { text-align:right }
.zero { color:var(--faint) }
.matrix td.hit { background:rgba(var(--accent-rgb),var(--a)) }
.matrix td.miss { background:rgba(var(--bad-rgb),var(--a)) }
.note { color:var(--soft); font-size:13px; margin:8px 0 0 }
.notice { border-left:4px solid var(--warn); margin:0 0 14px } .notice ul { margin:6px 0 0; padding-left:20px }
.filters { display:flex; flex-wrap:wrap; gap:8px; align-items:center; position:sticky; top:0; z-index:1;
  background:var(--paper); padding:10px 0 }
.filters select,.filters input { font:inherit; font-size:14px; color:var(--ink); background:var(--card);
  border:1px solid var(--line); border-radius:7px; padding:6px 10px } .filters input { flex:1; min-width:180px }
.cards { display:grid; grid-template-columns:repeat(auto-fill,minmax(500px,1fr)); gap:12px }
@media (max-width:600px) { .cards,.grid { grid-template-columns:1fr } main { padding:24px 14px }
  .tiles { grid-template-columns:1fr 1fr }
  .tile.main { grid-column:1/-1 } }
.case { padding:0; overflow:hidden; display:flex; flex-direction:column }
.frames { display:flex; gap:2px; background:#0b0d12 }
.frames img { flex:1; min-width:0; max-height:130px; object-fit:contain }
.frames p { color:#9aa3b5; margin:0; padding:14px 16px; font-size:13px }
.body { padding:13px 16px 14px; display:flex; flex-direction:column; gap:9px; flex:1 }
.pills { display:flex; gap:6px; align-items:center; font-size:12px }
.pill { border-radius:20px; padding:1px 9px; background:var(--accent-soft); color:var(--accent); font-weight:600 }
.pill.error { background:transparent; border:1px solid currentColor; color:var(--bad) } .pill.soft { color:var(--warn) }
.id { color:var(--faint); margin-left:auto; overflow:hidden; text-overflow:ellipsis; white-space:nowrap; max-width:50% }
.q { font-weight:600; white-space:pre-wrap; overflow-wrap:anywhere }
.pair { display:grid; grid-template-columns:1fr 1fr; gap:12px }
.pair div div { white-space:pre-wrap; overflow-wrap:anywhere; max-height:112px; overflow-y:auto }
.label { display:block; color:var(--faint); font-size:12px } .said { color:var(--bad) } .truth { color:var(--good) }
.path { font:12px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace; color:var(--faint); overflow-wrap:anywhere;
  margin-top:auto } .hidden { display:none !important }
.few td { overflow-wrap:anywhere; vertical-align:top } .few { font-size:13px }
details summary { cursor:pointer; color:var(--soft) } pre { font-size:12px; overflow-x:auto; margin:10px 0 0 }
@media print { body { background:#fff; font-size:12px } .filters { display:none } main { max-width:none; padding:0 }
  .panel,.case { break-inside:avoid } .cards { grid-template-columns:1fr 1fr } h2 { break-after:avoid }
  * { print-color-adjust:exact; -webkit-print-color-adjust:exact } .pair div div { max-height:none } }
"""
