// The theme: system, dark or light, as it was chosen here before. Runs before anything is drawn, so that nothing flashes.
(() => {
  const CHOICES = ["system", "dark", "light"];
  const KEY = "hubsub-theme";

  function stored() {
    try {
      const choice = localStorage.getItem(KEY);
      return CHOICES.includes(choice) ? choice : "system";
    } catch {
      return "system"; // No storage is allowed here.
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
        // It holds for this page alone then.
      }
      document.dispatchEvent(new Event("theme"));
    });
  });
})();
