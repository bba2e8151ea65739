// Draws every chart of the report. The expressions of a specification are interpreted (`ast`), because the page's
// content security policy forbids making code from text.
(async () => {
  "use strict";
  const { config, charts } = JSON.parse(document.getElementById("charts").textContent);
  const options = {
    mode: "vega-lite",
    renderer: "svg",
    ast: true,
    actions: false,
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
    config,
  };
  for (const [id, spec] of Object.entries(charts)) {
    try {
      await vegaEmbed(document.getElementById(id), spec, options);
    } catch (error) {
      console.error(`chart ${id}:`, error);
      document.getElementById(id).textContent = "This chart couldn't be drawn; its numbers are in the tables.";
    }
  }
  document.documentElement.dataset.charts = "drawn";
})();
