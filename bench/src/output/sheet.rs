//! Rows and columns of a report, and their forms. Pure.

use std::fmt::Write as _;

use paceline_client::print::{Table, bytes, interval, number};

use crate::statistics::{Estimate, Figure};

/// A column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Column {
    /// Name in CSV, with its unit: `ttft_ms`.
    key: &'static str,
    /// Heading for people.
    title: &'static str,
    /// Digits after the point, for people.
    digits: usize,
    /// Whether its cells are estimates. They have three columns in CSV.
    estimate: bool,
}

impl Column {
    /// A column of words or whole numbers.
    pub const fn plain(key: &'static str, title: &'static str) -> Self {
        Self { key, title, digits: 0, estimate: false }
    }

    /// A column of numbers without intervals.
    pub const fn number(key: &'static str, title: &'static str, digits: usize) -> Self {
        Self { key, title, digits, estimate: false }
    }

    /// A column of medians and their intervals.
    pub const fn estimate(key: &'static str, title: &'static str, digits: usize) -> Self {
        Self { key, title, digits, estimate: true }
    }
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Words.
    Text(String),
    /// A whole number.
    Count(u64),
    /// A number, if it is known.
    Number(Option<f64>),
    /// Bytes, if they are known.
    Bytes(Option<u64>),
    /// A median and its interval, if they are known.
    Estimate(Option<Estimate>),
}

impl From<Option<&Figure>> for Value {
    fn from(figure: Option<&Figure>) -> Self {
        Self::Estimate(figure.map(|figure| figure.estimate))
    }
}

impl From<&str> for Value {
    fn from(word: &str) -> Self {
        Self::Text(word.to_owned())
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl Value {
    /// The cell for people.
    fn shown(&self, digits: usize) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Number(value) => number(*value, digits),
            Self::Bytes(count) => count.map_or("-".to_owned(), bytes),
            Self::Estimate(found) => cell(found.as_ref(), digits),
        }
    }

    /// The fields of the cell in CSV. An unknown value is an empty field.
    fn fields(&self) -> Vec<String> {
        let field = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        match self {
            Self::Text(text) => vec![quoted(text)],
            Self::Count(count) => vec![count.to_string()],
            Self::Number(value) => vec![field(*value)],
            Self::Bytes(count) => vec![count.map_or(String::new(), |count| count.to_string())],
            Self::Estimate(found) => {
                let interval = found.and_then(|found| found.interval);
                let (low, high) = (interval.map(|ends| ends.0), interval.map(|ends| ends.1));
                vec![field(found.map(|found| found.median)), field(low), field(high)]
            }
        }
    }
}

/// A table of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Sheet {
    /// Name in CSV, and heading in Markdown if there are several.
    name: &'static str,
    columns: Vec<Column>,
    rows: Vec<Vec<Value>>,
}

impl Sheet {
    /// A table without rows.
    pub fn new(name: &'static str, columns: impl IntoIterator<Item = Column>) -> Self {
        Self { name, columns: columns.into_iter().collect(), rows: vec![] }
    }

    /// Adds a row, which has a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Value>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table for a terminal.
    pub fn text(&self) -> String {
        let mut table = Table::new(self.columns.iter().map(|column| column.title));
        for row in &self.rows {
            table.row(self.shown(row));
        }
        table.text()
    }

    fn shown(&self, row: &[Value]) -> Vec<String> {
        self.columns.iter().zip(row).map(|(column, cell)| cell.shown(column.digits)).collect()
    }

    fn markdown(&self) -> String {
        let line = |cells: Vec<String>| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let titles = self.columns.iter().map(|column| column.title.to_owned()).collect();
        // The first column is of words.
        let rule = (0..self.columns.len()).map(|at| if at == 0 { "---" } else { "---:" });
        let mut text = line(titles) + &format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
        self.rows.iter().for_each(|row| text.push_str(&line(self.shown(row))));
        text
    }

    /// Names of the fields of each column in CSV.
    fn keys(&self) -> impl Iterator<Item = Vec<String>> {
        self.columns.iter().map(|Column { key, estimate, .. }| match estimate {
            false => vec![(*key).to_owned()],
            true => vec![(*key).to_owned(), format!("{key}_low"), format!("{key}_high")],
        })
    }
}

/// All tables in one CSV (RFC 4180). Its columns are those of all tables together: the first one
/// names the table, the next ones are `constants`, the same in each row.
pub fn csv(sheets: &[Sheet], constants: &[(&str, &str)]) -> String {
    let mut keys: Vec<String> = vec![];
    for key in sheets.iter().flat_map(Sheet::keys).flatten() {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let head = constants.iter().map(|(key, _)| (*key).to_owned()).chain(keys.iter().cloned());
    let mut text = format!("table,{}\n", head.collect::<Vec<_>>().join(","));
    for sheet in sheets {
        for row in &sheet.rows {
            let mut fields = vec![String::new(); keys.len()];
            for (names, value) in sheet.keys().zip(row) {
                for (name, field) in names.iter().zip(value.fields()) {
                    if let Some(at) = keys.iter().position(|key| key == name) {
                        fields[at] = field;
                    }
                }
            }
            let constants = constants.iter().map(|(_, value)| quoted(value));
            let fields: Vec<String> = constants.chain(fields).collect();
            let _ = writeln!(text, "{},{}", sheet.name, fields.join(","));
        }
    }
    text
}

/// All tables in Markdown.
pub fn markdown(sheets: &[Sheet]) -> String {
    let alone = sheets.len() == 1;
    let table = |sheet: &Sheet| match alone {
        true => sheet.markdown(),
        false => format!("### {}\n\n{}", sheet.name, sheet.markdown()),
    };
    sheets.iter().map(table).collect::<Vec<_>>().join("\n")
}

/// A field of CSV, in quotes if it needs them.
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

/// The median and its interval in a column each; "-" for what is not known.
pub fn columns(found: Option<&Estimate>, digits: usize) -> [String; 2] {
    [
        number(found.map(|found| found.median), digits),
        interval(found.and_then(|found| found.interval), digits),
    ]
}

/// The median, and in brackets its interval if it is known.
pub fn cell(found: Option<&Estimate>, digits: usize) -> String {
    let median = number(found.map(|found| found.median), digits);
    match found.and_then(|found| found.interval) {
        None => median,
        ends => format!("{median} {}", interval(ends, digits)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheets() -> Vec<Sheet> {
        let mut speeds = Sheet::new(
            "speeds",
            [
                Column::plain("kind", "KIND"),
                Column::plain("streams", "AT ONCE"),
                Column::estimate("ttft_ms", "TTFT ms", 1),
                Column::number("share", "SHARE", 2),
                Column::plain("peak_bytes", "PEAK"),
            ],
        );
        let known = Estimate { median: 2.5, interval: Some((2.0, 3.0)) };
        speeds.row([
            Value::from("a, \"b\" | c"),
            Value::from(4_usize),
            Value::Estimate(Some(known)),
            Value::Number(Some(0.125)),
            Value::Bytes(Some(2_048)),
        ]);
        let few = Estimate { median: 7.0, interval: None };
        speeds.row([
            Value::from("json"),
            Value::from(1_usize),
            Value::Estimate(Some(few)),
            Value::Number(None),
            Value::Bytes(None),
        ]);
        let mut other =
            Sheet::new("other", [Column::plain("kind", "KIND"), Column::plain("answers", "N")]);
        other.row([Value::from("json"), Value::from(3_usize)]);
        vec![speeds, other]
    }

    #[test]
    fn csv_has_one_header_for_all_tables() {
        let expected = "\
table,target,kind,streams,ttft_ms,ttft_ms_low,ttft_ms_high,share,peak_bytes,answers
speeds,\"m,1\",\"a, \"\"b\"\" | c\",4,2.5,2,3,0.125,2048,
speeds,\"m,1\",json,1,7,,,,,
other,\"m,1\",json,,,,,,,3
";
        assert_eq!(csv(&sheets(), &[("target", "m,1")]), expected);
    }

    #[test]
    fn markdown_has_a_heading_for_each_of_several_tables() {
        let expected = "\
### speeds

| KIND | AT ONCE | TTFT ms | SHARE | PEAK |
|---|---:|---:|---:|---:|
| a, \"b\" \\| c | 4 | 2.5 (2.0 to 3.0) | 0.12 | 2.0 KiB |
| json | 1 | 7.0 | - | - |

### other

| KIND | N |
|---|---:|
| json | 3 |
";
        assert_eq!(markdown(&sheets()), expected);
        assert!(markdown(&sheets()[1..]).starts_with("| KIND | N |\n"));
    }

    #[test]
    fn a_terminal_shows_aligned_columns() {
        let expected = "\
KIND        AT ONCE           TTFT ms  SHARE     PEAK
a, \"b\" | c        4  2.5 (2.0 to 3.0)   0.12  2.0 KiB
json              1               7.0      -        -
";
        assert_eq!(sheets()[0].text(), expected);
    }

    #[test]
    fn an_estimate_is_printed_in_one_column_or_in_two() {
        let known = Estimate { median: 2.0, interval: Some((1.0, 3.25)) };
        let few = Estimate { median: 2.0, interval: None };
        assert_eq!(columns(Some(&known), 1), ["2.0", "(1.0 to 3.2)"]);
        assert_eq!(
            (columns(Some(&few), 0), columns(None, 0)),
            (["2", "-"].map(String::from), ["-", "-"].map(String::from))
        );
        assert_eq!(
            [cell(Some(&known), 0), cell(Some(&few), 2), cell(None, 1)],
            ["2 (1 to 3)", "2.00", "-"]
        );
    }
}
