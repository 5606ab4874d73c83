// The explorer: asks for bounds while something moves, for an attack when it rests, one question at a time.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const { free, largest, points } = JSON.parse($("settings").textContent);
  const REST = 350; // milliseconds without a move before the attack
  const axes = [$("x0"), $("x1")].filter(Boolean);
  let moved = points === 0; // whether the input is where it was put, not one of the list
  let wanted = null, busy = false, timer = 0, open = false;
  let refused = false; // whether a field has a value that cannot be asked about

  const mark = (field, fault) => {
    $(`${field.id}-fault`).textContent = fault;
    field.setAttribute("aria-invalid", String(fault !== ""));
    return fault === "";
  };
  const good = (field, whole) => {
    const value = field.valueAsNumber; // NaN where there is no number
    const fits = value >= Number(field.min) && value <= Number(field.max) && (!whole || Number.isInteger(value));
    return mark(field, fits ? "" : `Give a ${whole ? "whole number" : "number"} from ${field.min} to ${field.max}.`);
  };
  const question = (attack) => { // of the values that the fields show, or null
    const known = moved || good($("index"), true);
    if (!good($("eps"), false) || !known) return null;
    const eps = $("eps").valueAsNumber;
    return moved ? { x: axes.map((axis) => Number(axis.value)), eps, attack } : { index: $("index").valueAsNumber, eps, attack };
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
      if (!refused && reply.ok) show(answer); else if (!refused) fail(`No answer: ${answer.error}`);
    } catch {
      if (!refused) fail("No answer: the program behind this page does not reply; start bnndp explore again.");
    }
    busy = false;
    if (wanted === null) document.body.removeAttribute("aria-busy");
    work();
  };
  const ask = (attack = false) => {
    clearTimeout(timer);
    wanted = question(attack);
    refused = wanted === null;
    if (refused) return fail("No answer: the marked field has no value that can be used.");
    if (attack) $("state").textContent = "attacking …"; else timer = setTimeout(() => ask(true), REST);
    work();
  };
  const move = () => {
    moved = true;
    if ($("index")) { $("index").value = ""; mark($("index"), ""); } // it is no longer one of the list
    ask();
  };

  if ($("index")) $("index").addEventListener("input", () => { moved = false; ask(); });
  for (const axis of axes) axis.addEventListener("input", move);
  const follow = () => { $("eps-range").value = Math.cbrt(Math.min(($("eps").valueAsNumber || 0) / largest, 1)); };
  $("eps").addEventListener("input", () => { follow(); ask(); });
  $("eps-range").addEventListener("input", () => { // cubed, so that small radii have room
    $("eps").value = Math.min(Number((largest * Number($("eps-range").value) ** 3).toPrecision(3)), largest);
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
    move();
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
