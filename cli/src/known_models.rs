//! `paceline models --known`: the models that are known to work, and what they need.

use paceline_checkpoint::{KnownModel, ModelPlaces, ModelRef};
use paceline_client::{Failure, Screen};
use paceline_launcher::fetch::device_report;
use paceline_process::Loaded;
use paceline_system::platform;
use serde::Serialize;

use crate::status::aligned;

/// A known model, as the command prints it.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    model: &'static KnownModel,
    /// Whether it fits the memory that can be used now; null if that is not known.
    fits: Option<bool>,
    /// Whether it is on this machine.
    here: bool,
}

/// Runs the command.
///
/// # Errors
/// The output was closed.
pub async fn run(json: bool, screen: &mut Screen) -> Result<(), Failure> {
    let usable = match Loaded::find(None) {
        Ok(loaded) => device_report(&loaded).await.usable_bytes,
        // The list needs no configuration.
        Err(_) => platform::available_memory(),
    };
    let places = ModelPlaces::of_user();
    let row = |model| Row::of(model, &places, usable);
    let rows: Vec<Row> = KnownModel::all().iter().map(row).collect();
    let text = match json {
        true => format!("{}\n", serde_json::json!({ "known": rows, "usable_bytes": usable })),
        false => table(&rows),
    };
    screen.text(&text)
}

impl Row {
    fn of(model: &'static KnownModel, places: &ModelPlaces, usable: Option<u64>) -> Self {
        let fits = usable.map(|usable| model.memory_bytes <= usable);
        Self { model, fits, here: places.locate(&ModelRef::parse(&model.name)).is_ok() }
    }

    /// The words of the line about this model.
    fn cells(&self) -> [String; 7] {
        let Self { model, fits, here } = self;
        let word = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let hub = model.hub.as_ref().map(ToString::to_string);
        [
            model.name.clone(),
            hub.unwrap_or_else(|| "a Python package".to_owned()),
            model.size(),
            model.memory(),
            fits.map_or("unknown".to_owned(), word),
            word(*here),
            format!("{}{}", model.drafter, if model.pictures { "; reads images" } else { "" }),
        ]
    }
}

fn table(rows: &[Row]) -> String {
    let head = ["NAME", "HUB", "DOWNLOAD", "MEMORY", "FITS", "HERE", "DRAFTER"];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    aligned(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_model_is_one_line_with_what_it_needs_and_whether_it_fits_and_is_here() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let own = dir.path().join("models");
        std::fs::create_dir_all(own.join("smollm2")).expect("made");
        for name in ["config.json", "model.safetensors"] {
            std::fs::write(own.join("smollm2").join(name), "{}").expect("written");
        }
        let places = ModelPlaces { own: Some(own), ..ModelPlaces::default() };
        let row = |name, usable| Row::of(KnownModel::named(name).expect("known"), &places, usable);
        let rows = [row("smollm2", Some(1 << 30)), row("qwen3.5-4b", Some(1 << 30))];
        assert_eq!(
            table(&rows),
            "NAME        HUB                                DOWNLOAD      MEMORY        FITS  HERE  DRAFTER\n\
             smollm2     a Python package                   93 MB         about 500 MB  yes   yes   embedded\n\
             qwen3.5-4b  mlx-community/Qwen3.5-4B-MLX-4bit  about 3.1 GB  about 4.0 GB  no    no    z-lab/Qwen3.5-4B-DFlash; reads images\n"
        );
        let object = serde_json::to_value(row("qwen3.5-4b", None)).expect("plain");
        assert_eq!((&object["fits"], &object["here"]), (&serde_json::Value::Null, &false.into()));
        assert_eq!(object["hub"], "mlx-community/Qwen3.5-4B-MLX-4bit");
    }
}
