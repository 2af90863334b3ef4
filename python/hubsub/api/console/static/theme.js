// The theme: system, dark or light, as chosen before. Runs before the first paint to avoid a flash.
(() => {
  const CHOICES = ["system", "dark", "light"];
  const KEY = "hubsub-theme";

  function stored() {
    try {
      const choice = localStorage.getItem(KEY);
      return CHOICES.includes(choice) ? choice : "system";
    } catch {
      return "system"; // The browser blocks storage.
    }
  }

  function apply(choice) {
    if (choice === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", choice);
  }

  let choice = stored();
  apply(choice);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const show = () => {
      button.textContent = `Theme: ${choice}`;
    };
    show();
    button.addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      apply(choice);
      show();
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // Without storage the choice applies to this page only.
      }
      document.dispatchEvent(new Event("theme"));
    });
  });
})();
