//! An image's address: `data:` with the file in it, and nothing else. The service never fetches an
//! address, so that no client can use this machine to reach others.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::BadImage;

/// With or without padding at the end, as programs write it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The file in an address (RFC 2397). The type in the address is ignored: the type is read from the
/// bytes.
///
/// # Errors
/// It is another address, or not base64.
pub fn open(url: &str) -> Result<Vec<u8>, BadImage> {
    let url = url.trim();
    let scheme: String = url.split(':').next().unwrap_or_default().chars().take(16).collect();
    if !scheme.eq_ignore_ascii_case("data") || !url.contains(':') {
        let found = match scheme.to_ascii_lowercase().as_str() {
            word @ ("http" | "https" | "file" | "ftp" | "blob") if url.contains(':') => {
                format!("an address of type {word}")
            }
            _ => "another address".to_owned(),
        };
        return Err(format!(
            "expected a data: URL with the image in it, found {found}; this service fetches nothing, send the bytes"
        ).into());
    }
    let (head, data) = url
        .split_once(',')
        .ok_or("expected data:<type>;base64,<data>, found a URL without a comma")?;
    if !head.to_ascii_lowercase().ends_with(";base64") {
        return Err(
            "expected data:<type>;base64,<data>, found a data: URL that is not base64".into()
        );
    }
    decode_base64(data)
}

/// The bytes of base64 in either alphabet, with or without padding and line breaks.
///
/// # Errors
/// The data is not base64. The error repeats no character of the client.
pub fn decode_base64(data: &str) -> Result<Vec<u8>, BadImage> {
    let data = data.trim();
    // Some programs break the data into lines, as in mail, or use the alphabet for URLs.
    let is_plain = |byte: u8| !byte.is_ascii_whitespace() && byte != b'-' && byte != b'_';
    let plain: String;
    let data = if data.bytes().all(is_plain) {
        data
    } else {
        let characters = data.chars().filter(|character| !character.is_ascii_whitespace());
        plain = characters
            .map(|character| match character {
                '-' => '+',
                '_' => '/',
                character => character,
            })
            .collect();
        &plain
    };
    BASE64
        .decode(data)
        .map_err(|_| format!("expected base64, found {} bytes that are none", data.len()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_data_urls_are_accepted() {
        for good in [
            "data:image/png;base64,AAEC",
            "DATA:;BASE64,AAEC",
            " data:image/x;charset=a;base64,\nAA EC ",
            "data:a/b;base64,AAEC",
        ] {
            assert_eq!(open(good), Ok(vec![0, 1, 2]), "{good}");
        }
        assert_eq!(open("data:image/png;base64,AA=="), open("data:image/png;base64,AA"));
        for (bad, word) in [
            ("http://169.254.169.254/latest", "fetches nothing"),
            ("https://example.com/a.png", "type https"),
            ("file:///etc/passwd", "type file"),
            ("//host/a.png", "another address"),
            ("data", "another address"),
            ("", "another address"),
            ("data:image/png;base64", "without a comma"),
            ("data:image/svg+xml,<svg/>", "not base64"),
            ("data:image/png;base64,?AAA", "expected base64"),
            ("data:image/png;base64,A", "expected base64"),
        ] {
            let error = open(bad).expect_err(bad).to_string();
            assert!(error.contains(word), "{bad}: {error}");
            assert!(!error.contains("169") && !error.contains("passwd"), "{error}");
        }
    }

    #[test]
    fn base64_is_read_in_both_alphabets_with_line_breaks_and_without_padding() {
        let bytes = vec![0xfb, 0xff, 0xbf, 0xfa];
        for data in ["+/+/+g==", "-_-_-g==", "-_-_-g", "+_-/-g", "-_-\r\n_-g\n", " -_-_-g== "] {
            assert_eq!(decode_base64(data), Ok(bytes.clone()), "{data:?}");
        }
        assert_eq!(open("data:image/png;base64,-_-_-g=="), Ok(bytes));
        for data in ["-_-_-g=-", "-_-_-", "-_.-_"] {
            let error = decode_base64(data).expect_err(data).to_string();
            assert!(error.contains("expected base64") && !error.contains('-'), "{error}");
        }
    }
}
