use super::*;

fn file(name: &str) -> Vec<u8> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/images");
    std::fs::read(dir.join(name)).expect("in the repository")
}

#[test]
fn headers_have_size_and_orientation() {
    for (name, kind, sizes, upright) in [
        ("up.png", Kind::Png, (100, 60), (100, 60)),
        ("turned6.png", Kind::Png, (67, 45), (45, 67)),
        ("turned.jpg", Kind::Jpeg, (96, 64), (64, 96)),
        ("progressive.jpg", Kind::Jpeg, (80, 96), (80, 96)),
        ("lossless_alpha.webp", Kind::WebP, (70, 61), (61, 70)),
        ("lossy.webp", Kind::WebP, (96, 80), (96, 80)),
        ("still.gif", Kind::Gif, (90, 70), (90, 70)),
    ] {
        let header = read(&file(name)).expect(name);
        assert_eq!(
            (
                header.kind,
                (header.width, header.height),
                (header.upright().width, header.upright().height)
            ),
            (kind, sizes, upright),
            "{name}"
        );
        let pixels = u64::from(header.width * header.height);
        assert!(
            (pixels * 3..pixels * 16 + 20_000).contains(&header.decoding_bytes),
            "{name}: {}",
            header.decoding_bytes
        );
    }
}

/// Wherever a file is cut, it is not all there.
#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    for name in [
        "up.png",
        "alpha.png",
        "baseline.jpg",
        "progressive.jpg",
        "lossless.webp",
        "lossy.webp",
        "still.gif",
    ] {
        let whole = file(name);
        for length in 0..whole.len() {
            // The last byte of a GIF or of a JPEG is its end; a WebP says how long it is.
            assert!(read(&whole[..length]).is_err(), "{name}, {length} of {} bytes", whole.len());
        }
        assert!(read(&[&whole[..], b"more behind it"].concat()).is_ok(), "{name}");
    }
}

#[test]
fn types_that_are_not_served_are_named() {
    for (bytes, word) in [
        (&b""[..], "empty"),
        (b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"%PDF-1.7", "PDF"),
        (b"BM\x36\0", "BMP"),
        (b"II*\0", "TIFF"),
        (b"\0\0\0\x1cftypavif", "AVIF"),
        (b"\x1f\x8b\x08", "packed"),
        (b"<!DOCTYPE html>", "document"),
        (b"hello", "another file"),
    ] {
        let error = read(bytes).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn metadata_does_not_reach_the_decoder() {
    let plain = file("up.png");
    assert!(matches!(for_decoder(Kind::Png, &plain), Cow::Borrowed(_)));
    let turned = file("turned6.png");
    let kept = for_decoder(Kind::Png, &turned);
    assert!(kept.len() < turned.len() && !kept.windows(4).any(|word| word == b"eXIf"));
    assert!(read(&kept).is_ok());
}
