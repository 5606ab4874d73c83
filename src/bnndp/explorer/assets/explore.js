// The explorer: asks for bounds while something moves, for an attack when it rests, one question at a time.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const { free, largest, points } = JSON.parse($("settings").textContent);
  const REST = 350; // milliseconds without a move before the attack
  const axes = [$("x0"), $("x1")].filter(Boolean);
  let moved = points === 0; // whether the input is where it was put, not one of the list
  let wanted = null, busy = false, timer = 0, open = false;

  const question = (attack) => {
    const eps = Math.min(Math.max($("eps").valueAsNumber || 0, 0), largest);
    return moved ? { x: axes.map((axis) => Number(axis.value)), eps, attack }
      : { index: Math.min(Math.max($("index").valueAsNumber || 0, 0), points - 1), eps, attack };
  };
  const show = (answer) => {
    $("sentence").innerHTML = answer.sentence; // markup of our own server, escaped there; the policy runs no script in it
    open = $("numbers") ? $("numbers").open : open;
    $("view").innerHTML = answer.view;
    $("bounds").innerHTML = answer.bounds;
    if ($("numbers")) $("numbers").open = open;
    $("state").textContent = answer.state;
    answer.x.forEach((value, index) => {
      if (!axes[index]) return;
      if (!moved) axes[index].value = value;
      $(`x${index}-shown`).textContent = Number(axes[index].value).toPrecision(4).replace("-", "−");
    });
  };
  const fail = (text) => {
    $("sentence").textContent = text; // nothing that was proved before is left standing
    $("view").replaceChildren();
    $("bounds").replaceChildren();
    $("state").textContent = "";
  };
  const work = async () => {
    if (busy || wanted === null) return;
    const asked = wanted;
    wanted = null;
    busy = true;
    document.body.setAttribute("aria-busy", "true");
    try {
      const reply = await fetch("ask", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked) });
      const answer = await reply.json();
      if (reply.ok) show(answer); else fail(`No answer: ${answer.error}`);
    } catch {
      fail("No answer: the program behind this page does not reply; start bnndp explore again.");
    }
    busy = false;
    if (wanted === null) document.body.removeAttribute("aria-busy");
    work();
  };
  const ask = () => {
    wanted = question(false);
    clearTimeout(timer);
    timer = setTimeout(() => { wanted = question(true); $("state").textContent = "attacking …"; work(); }, REST);
    work();
  };

  if ($("index")) $("index").addEventListener("input", () => { moved = false; ask(); });
  for (const axis of axes) axis.addEventListener("input", () => { moved = true; ask(); });
  const follow = () => { $("eps-range").value = Math.cbrt(Math.min(($("eps").valueAsNumber || 0) / largest, 1)); };
  $("eps").addEventListener("input", () => { follow(); ask(); });
  $("eps-range").addEventListener("input", () => { // cubed, so that small radii have room
    $("eps").value = Number((largest * Number($("eps-range").value) ** 3).toPrecision(3));
    ask();
  });
  $("controls").addEventListener("submit", (event) => event.preventDefault());

  // Dragging in the picture.
  const place = (event) => {
    const svg = $("view").querySelector("svg");
    if (!free || !svg) return;
    const box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
    const at = [(event.clientX - box.left) * unit, (event.clientY - box.top) * unit];
    axes.forEach((axis, index) => {
      const [low, high, start, end] = svg.dataset[index === 0 ? "x" : "y"].split(" ").map(Number);
      axis.value = low + (high - low) * Math.min(Math.max((at[index] - start) / (end - start), 0), 1);
    });
    moved = true;
    ask();
  };
  if (free) {
    const view = $("view");
    view.classList.add("drag");
    view.addEventListener("pointerdown", (event) => { if (!event.target.closest("svg")) return; view.setPointerCapture(event.pointerId); event.preventDefault(); place(event); });
    view.addEventListener("pointermove", (event) => { if (view.hasPointerCapture(event.pointerId)) place(event); });
  }
  follow();
  ask();
})();
