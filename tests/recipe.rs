//! The recipe that trains drafters (`demo/smollm2/train`), for a few steps on the embedded target.

use std::path::Path;
use std::process::Command;

use paceline_tests::{programs, repository, skip};
use serde_json::Value;

/// What a run left in its folder: a line for each check of the drafter, and the digest of the
/// weights, once they are written.
struct Trained {
    lines: Vec<Value>,
    weights: Option<Value>,
}

/// Runs the recipe in `out` on the data that is there, or makes it.
fn train(python: &Path, out: &Path, more: &[&str]) -> Trained {
    let teacher = programs().join("examples/teacher");
    let mut command = Command::new(python);
    command.current_dir(repository()).arg("-B").arg("demo/smollm2/train/recipe.py").arg("--out");
    command.arg(out).args(["--model", "demo/target", "--layers", "1,3,6,7", "--prompts", "24"]);
    command.args(["--vocabulary", "1024", "--steps", "20", "--teacher"]).arg(teacher).args(more);
    // MLX and torch would each take all cores.
    let output = command.env("OMP_NUM_THREADS", "2").output().expect("python is there");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{more:?}: {output:?}");
    let line = |line: &str| {
        let object = line.strip_prefix("eagle3 ")?.rsplit_once("} ")?.0;
        Some(serde_json::from_str(&format!("{object}}}")).expect("an object"))
    };
    let recipe = std::fs::read(out.join("eagle3/recipe.json")).ok();
    let recipe = recipe.map(|recipe| serde_json::from_slice::<Value>(&recipe).expect("an object"));
    Trained {
        lines: text.lines().filter_map(line).collect(),
        weights: recipe.map(|recipe| recipe["weights_sha256"].clone()),
    }
}

#[test]
#[ignore = "more: needs Python packages"]
fn the_recipe_learns_can_be_interrupted_and_gives_the_same_drafter_for_the_same_seed() {
    let test = "the_recipe_learns_can_be_interrupted_and_gives_the_same_drafter_for_the_same_seed";
    let Some(python) = skip::training_python(test) else { return };
    let out = tempfile::tempdir().expect("a temporary directory");
    let out = out.path();
    let stopped = train(&python, out, &["--stop-at", "9"]);
    assert_eq!(stopped.weights, None, "it is not finished");
    let resumed = train(&python, out, &[]);
    let loss = |trained: &Trained| trained.lines.last().expect("a line")["loss"].as_f64();
    let [first, second] = [&stopped, &resumed].map(|trained| loss(trained).expect("a number"));
    assert!(second < 0.95 * first, "the loss falls: {first}, then {second}");
    let inspected = Command::new(programs().join("paceline"))
        .args(["inspect", "demo-target", "--drafter"])
        .arg(out.join("eagle3"))
        .output()
        .expect("paceline is there");
    let text = String::from_utf8_lossy(&inspected.stdout);
    assert!(
        text.lines().any(|line| line.starts_with("drafter") && line.contains("fits")),
        "{text}"
    );
    let again = |more: &[&str]| {
        std::fs::remove_file(out.join("eagle3.pt")).expect("it is there");
        train(&python, out, more).weights
    };
    assert_eq!(again(&[]), resumed.weights, "it was not interrupted");
    assert_ne!(again(&["--seed", "1"]), resumed.weights, "another seed");
}
