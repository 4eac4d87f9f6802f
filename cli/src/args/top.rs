//! Arguments of `paceline top`.

use std::str::FromStr;

use clap::Args;
use paceline_client::args::ConfigArg;

/// Arguments of `paceline top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print one frame as text and end; needs no terminal
    #[arg(long)]
    pub once: bool,
    /// With --once: columns and rows of the frame
    #[arg(long, value_name = "WxH", requires = "once", default_value = "100x30")]
    pub size: FrameSize,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// Most columns or rows of a frame that is printed.
const MOST_CELLS: u16 = 500;

/// Columns and rows of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// A text that is no size.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected columns and rows from 1 to {MOST_CELLS}, as 100x30")]
pub struct BadFrameSize;

impl FromStr for FrameSize {
    type Err = BadFrameSize;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (width, height) = text.split_once('x').ok_or(BadFrameSize)?;
        let cells = |text: &str| {
            let number = text.parse().map_err(|_| BadFrameSize)?;
            if (1..=MOST_CELLS).contains(&number) { Ok(number) } else { Err(BadFrameSize) }
        };
        Ok(Self { width: cells(width)?, height: cells(height)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_two_numbers_of_cells() {
        assert_eq!("100x30".parse(), Ok(FrameSize { width: 100, height: 30 }));
        for bad in ["", "100", "x", "0x30", "100x501", "100x-1", "100x30x2", "axb"] {
            assert_eq!(bad.parse::<FrameSize>(), Err(BadFrameSize), "{bad}");
        }
    }
}
