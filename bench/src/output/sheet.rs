//! Rows and columns of a report, and their forms. Pure.

use std::fmt::Write as _;

use paceline_client::print::{Table, bytes, interval, number};

use crate::statistics::{Estimate, Figure};

/// How the terminal shows a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// As Markdown does.
    Plain,
    /// An estimate in two columns: the median, and its interval.
    Apart,
    /// The median of an estimate.
    Median,
    /// Not at all.
    Hidden,
    /// On the terminal alone: neither in Markdown nor in CSV.
    Alone,
}

/// A column with its cells.
#[derive(Clone, Debug, PartialEq)]
struct SheetColumn {
    /// Name in CSV, with its unit: `ttft_ms`.
    key: &'static str,
    /// Heading for people.
    title: String,
    /// Digits after the point, for people.
    digits: usize,
    look: Look,
    cells: Vec<CellValue>,
}

impl SheetColumn {
    fn headings(&self) -> Vec<String> {
        let interval = (self.look == Look::Apart).then(|| "(95 %)".to_owned());
        [self.title.clone()].into_iter().chain(interval).collect()
    }

    /// The cell of a row on the terminal.
    fn shown(&self, row: usize) -> Vec<String> {
        match (self.look, &self.cells[row]) {
            (Look::Apart, CellValue::Estimate(found)) => apart(found.as_ref(), self.digits).into(),
            (Look::Median, CellValue::Estimate(found)) => {
                vec![number(found.map(|found| found.median), self.digits)]
            }
            (_, cell) => vec![cell.shown(self.digits)],
        }
    }

    /// Names of the fields in CSV, where an estimate has three.
    fn keys(&self) -> Vec<String> {
        let ends: &[&str] = match self.cells.first() {
            Some(CellValue::Estimate(_)) => &["", "_low", "_high"],
            _ => &[""],
        };
        ends.iter().map(|end| format!("{}{end}", self.key)).collect()
    }
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub enum CellValue {
    /// Words, or a whole number.
    Text(String),
    /// A number, if it is known.
    Number(Option<f64>),
    /// Bytes, if they are known.
    Bytes(Option<u64>),
    /// A median and its interval, if they are known.
    Estimate(Option<Estimate>),
}

impl From<Option<&Figure>> for CellValue {
    fn from(figure: Option<&Figure>) -> Self {
        Self::Estimate(figure.map(|figure| figure.estimate))
    }
}

impl From<Option<Estimate>> for CellValue {
    fn from(estimate: Option<Estimate>) -> Self {
        Self::Estimate(estimate)
    }
}

impl From<Option<f64>> for CellValue {
    fn from(number: Option<f64>) -> Self {
        Self::Number(number)
    }
}

impl CellValue {
    /// The cell for people.
    fn shown(&self, digits: usize) -> String {
        match self {
            Self::Text(text) => text.clone(),
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
    /// Number of rows.
    rows: usize,
    columns: Vec<SheetColumn>,
}

impl Sheet {
    /// A table with a line for each of `rows`, whose columns are added one by one.
    pub fn of<'a, R>(name: &'static str, rows: &'a [R]) -> SheetBuilder<'a, R> {
        SheetBuilder { rows, sheet: Self { name, rows: rows.len(), columns: vec![] } }
    }

    /// The table for a terminal.
    pub fn text(&self) -> String {
        self.text_without("")
    }

    /// The table for a terminal if an explanation names its unit.
    pub fn text_in_milliseconds(&self) -> String {
        self.text_without(" ms")
    }

    /// The table for a terminal, with headings without this ending.
    fn text_without(&self, unit: &str) -> String {
        let shown: Vec<&SheetColumn> =
            self.columns.iter().filter(|column| column.look != Look::Hidden).collect();
        let titles = shown.iter().flat_map(|column| column.headings());
        let mut table =
            Table::new(titles.map(|title| title.strip_suffix(unit).unwrap_or(&title).to_owned()));
        for row in 0..self.rows {
            table.row(shown.iter().flat_map(|column| column.shown(row)));
        }
        table.text()
    }

    /// The columns of files.
    fn filed(&self) -> impl Iterator<Item = &SheetColumn> {
        self.columns.iter().filter(|column| column.look != Look::Alone)
    }

    fn markdown(&self) -> String {
        let line = |cells: Vec<String>| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let titles: Vec<String> = self.filed().map(|column| column.title.clone()).collect();
        // The first column is of words.
        let rule = (0..titles.len()).map(|at| if at == 0 { "---" } else { "---:" });
        let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
        let shown = |row: usize| {
            line(self.filed().map(|column| column.cells[row].shown(column.digits)).collect())
        };
        line(titles) + &rule + &(0..self.rows).map(shown).collect::<String>()
    }
}

/// A table to which columns are added. Each takes its cells from the rows.
pub struct SheetBuilder<'a, R> {
    rows: &'a [R],
    sheet: Sheet,
}

impl<'a, R> SheetBuilder<'a, R> {
    /// Adds a column of words or whole numbers.
    pub fn plain<V: ToString>(
        self,
        key: &'static str,
        title: &str,
        of: impl Fn(&'a R) -> V,
    ) -> Self {
        self.number(key, title, 0, |row| CellValue::Text(of(row).to_string()))
    }

    /// Adds a column of numbers or bytes, or of medians with their intervals.
    pub fn number<V: Into<CellValue>>(
        mut self,
        key: &'static str,
        title: &str,
        digits: usize,
        of: impl Fn(&'a R) -> V,
    ) -> Self {
        let cells = self.rows.iter().map(|row| of(row).into()).collect();
        let (title, look) = (title.to_owned(), Look::Plain);
        self.sheet.columns.push(SheetColumn { key, title, digits, look, cells });
        self
    }

    /// Says how the terminal shows the last column.
    pub fn look(mut self, look: Look) -> Self {
        self.sheet.columns.iter_mut().last().expect("a column was added").look = look;
        self
    }

    /// The table with all its columns.
    pub fn sheet(self) -> Sheet {
        self.sheet
    }
}

/// All tables in one CSV (RFC 4180). Its columns are those of all tables together: the first one
/// names the table, the next ones are `constants`, the same in each row.
pub fn csv(sheets: &[Sheet], constants: &[(&str, &str)]) -> String {
    let mut keys: Vec<String> = vec![];
    for key in sheets.iter().flat_map(Sheet::filed).flat_map(SheetColumn::keys) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let head = constants.iter().map(|(key, _)| (*key).to_owned()).chain(keys.iter().cloned());
    let mut text = format!("table,{}\n", head.collect::<Vec<_>>().join(","));
    for sheet in sheets {
        for row in 0..sheet.rows {
            let mut fields = vec![String::new(); keys.len()];
            for column in sheet.filed() {
                for (name, field) in column.keys().iter().zip(column.cells[row].fields()) {
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
fn apart(found: Option<&Estimate>, digits: usize) -> [String; 2] {
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

    type SpeedRow = (&'static str, usize, Estimate, Option<f64>, Option<u64>);

    fn sheets() -> Vec<Sheet> {
        let known = Estimate { median: 2.5, interval: Some((2.0, 3.0)) };
        let few = Estimate { median: 7.0, interval: None };
        let rows: [SpeedRow; 2] =
            [("a, \"b\" | c", 4, known, Some(0.125), Some(2_048)), ("json", 1, few, None, None)];
        let speeds = Sheet::of("speeds", &rows)
            .plain("kind", "KIND", |row| row.0)
            .plain("streams", "AT ONCE", |row| row.1)
            .number("ttft_ms", "TTFT ms", 1, |row| Some(row.2))
            .number("share", "SHARE", 2, |row| row.3)
            .number("peak_bytes", "PEAK", 0, |row| CellValue::Bytes(row.4));
        let other = Sheet::of("other", &[("json", 3_usize)])
            .plain("kind", "KIND", |row| row.0)
            .plain("answers", "N", |row| row.1)
            .sheet();
        vec![speeds.sheet(), other]
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
    fn a_terminal_may_show_other_columns_than_files() {
        let known = Estimate { median: 2.0, interval: Some((1.0, 3.25)) };
        let rows = [("json", CellValue::Estimate(Some(known)))];
        let sheet = Sheet::of("speeds", &rows)
            .plain("kind", "KIND", |row| row.0)
            .look(Look::Hidden)
            .plain("", "LANE", |_| "plain")
            .look(Look::Alone)
            .number("one", "ONE", 0, |row| row.1.clone())
            .look(Look::Apart)
            .number("other", "OTHER", 1, |row| row.1.clone())
            .look(Look::Median)
            .sheet();
        assert_eq!(sheet.text(), "LANE   ONE    (95 %)  OTHER\nplain    2  (1 to 3)    2.0\n");
        let expected = "\
| KIND | ONE | OTHER |
|---|---:|---:|
| json | 2 (1 to 3) | 2.0 (1.0 to 3.2) |
";
        assert_eq!(markdown(&[sheet]), expected);
    }

    #[test]
    fn an_estimate_is_printed_in_one_column_or_in_two() {
        let known = Estimate { median: 2.0, interval: Some((1.0, 3.25)) };
        let few = Estimate { median: 2.0, interval: None };
        assert_eq!(apart(Some(&known), 1), ["2.0", "(1.0 to 3.2)"]);
        assert_eq!(
            (apart(Some(&few), 0), apart(None, 0)),
            (["2", "-"].map(String::from), ["-", "-"].map(String::from))
        );
        assert_eq!(
            [cell(Some(&known), 0), cell(Some(&few), 2), cell(None, 1)],
            ["2 (1 to 3)", "2.00", "-"]
        );
    }
}
