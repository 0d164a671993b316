"use strict";
(function () {
  const root = document.documentElement;
  const given = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const fine = window.matchMedia("(pointer: fine)");

  // A copy with the dark scheme's colours, where that is asked for. Only keys that name colours.
  function themed(value, isColour) {
    if (typeof value === "string") {
      return isColour && dark.matches && Object.hasOwn(given.dark, value) ? given.dark[value] : value;
    }
    if (Array.isArray(value)) return value.map((item) => themed(item, isColour));
    if (value === null || typeof value !== "object") return value;
    const copy = {};
    for (const key of Object.keys(value)) {
      copy[key] = themed(value[key], isColour || /color$/i.test(key));
    }
    return copy;
  }

  function draw(id) {
    const box = document.getElementById(id);
    const figure = themed(given.figures[id], false);
    // On a touch screen a finger on a chart scrolls the page.
    figure.layout.dragmode = fine.matches ? "zoom" : false;
    return Plotly.react(box, figure.data, figure.layout, {
      displayModeBar: false, displaylogo: false, responsive: true, showTips: false,
    }).then(() => {
      // The box has its words for a screen reader; every single marker would be noise.
      for (const each of [box.querySelector(".plot-container"), document.getElementById("js-plotly-tester")]) {
        if (each) each.setAttribute("aria-hidden", "true");
      }
    }).catch((error) => {
      box.textContent = "This chart could not be drawn: " + error.message;
      throw error;
    });
  }

  // One after the other, so that the page answers between two charts.
  async function drawAll() {
    root.dataset.charts = "drawing";
    for (const id of Object.keys(given.figures)) {
      await draw(id);
      await new Promise((next) => setTimeout(next, 0));
    }
    root.dataset.charts = "drawn";
    performance.mark("charts-drawn");
  }

  // A link into closed details opens them.
  function reveal() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let each = target; each; each = each.parentElement) {
      if (each.tagName === "DETAILS") each.open = true;
    }
    target.scrollIntoView();
  }

  window.addEventListener("hashchange", reveal);
  dark.addEventListener("change", drawAll);
  drawAll().then(reveal);
})();
