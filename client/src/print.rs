//! Figures and parts of the status for people.

use paceline_proto::convert::service::ProcessReport;
use paceline_proto::v1::RefusedDrafter;

/// A table whose first column is aligned left and whose numbers are aligned right.
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// A table without rows.
    pub fn new(heading: impl IntoIterator<Item: Into<String>>) -> Self {
        Self(vec![heading.into_iter().map(Into::into).collect()])
    }

    /// Adds a row, which has a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    /// The lines of the table.
    pub fn text(&self) -> String {
        let width =
            |column: usize| self.0.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let cell = |(column, text): (usize, &String)| match column {
            0 => format!("{text:0$}", width(column)),
            _ => format!("{text:>0$}", width(column)),
        };
        let line = |row: &Vec<String>| row.iter().enumerate().map(cell).collect::<Vec<_>>();
        self.0.iter().map(|row| line(row).join("  ") + "\n").collect()
    }
}

/// A number with this many digits after the point; "-" for none.
pub fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

/// An interval in brackets; "-" for none.
pub fn interval(ends: Option<(f64, f64)>, digits: usize) -> String {
    ends.map_or("-".into(), |(low, high)| format!("({low:.digits$} to {high:.digits$})"))
}

/// Further lines of a text moved in, so that they are seen to belong to the first.
pub fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n    ")
}

/// The line of a refused drafter.
pub fn refusal(refused: &RefusedDrafter) -> String {
    let RefusedDrafter { model, reason } = refused;
    format!("drafter {model} was refused: {}", indented(reason))
}

/// The process's model for people, with the size of its weights.
pub fn process_model(process: &ProcessReport) -> String {
    match (&process.model, process.weight_bytes) {
        (None, _) => String::new(),
        (Some(model), 0) => model.clone(),
        (Some(model), weight) => format!("{model} ({})", bytes(weight)),
    }
}

/// How much of the weights is loaded. Their size is 0 if it is not known.
pub fn share(loaded_bytes: u64, weight_bytes: u64) -> String {
    let loaded = bytes(loaded_bytes);
    match weight_bytes {
        0 => loaded,
        all => format!("{loaded} of {} ({} %)", bytes(all), loaded_bytes * 100 / all),
    }
}

/// Bytes for people.
pub fn bytes(count: u64) -> String {
    let mut size = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if size < 1024.0 {
            return if unit == "B" { format!("{count} B") } else { format!("{size:.1} {unit}") };
        }
        size /= 1024.0;
    }
    format!("{size:.1} TiB")
}
