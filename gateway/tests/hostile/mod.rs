//! Images that are made to do harm, and the words that their refusal must have. Made here, byte
//! by byte, so that the repository holds none that a viewer could open.

use std::io::Write as _;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

/// One of them.
pub struct Hostile {
    pub name: &'static str,
    pub file: Vec<u8>,
    /// Text that the refusal must have.
    pub word: &'static str,
}

fn good(name: &str) -> Vec<u8> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/golden/images");
    std::fs::read(dir.join(name)).expect("in the repository")
}

fn packed(count: usize) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    let zeros = vec![0; 1 << 20];
    let mut left = count;
    while left > 0 {
        let now = left.min(zeros.len());
        encoder.write_all(&zeros[..now]).expect("memory");
        left -= now;
    }
    encoder.finish().expect("memory")
}

fn chunk(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let mut crc = Crc::new();
    crc.update(kind);
    crc.update(content);
    [&(content.len() as u32).to_be_bytes()[..], kind, content, &crc.sum().to_be_bytes()].concat()
}

/// A PNG of eight or sixteen bits and this color type.
fn png(width: u32, height: u32, depth: u8, color: u8, between: &[Vec<u8>], data: &[u8]) -> Vec<u8> {
    let head = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[depth, color, 0, 0, 0]].concat();
    let parts = [
        b"\x89PNG\r\n\x1a\n".to_vec(),
        chunk(b"IHDR", &head),
        between.concat(),
        chunk(b"IDAT", data),
        chunk(b"IEND", b""),
    ];
    parts.concat()
}

/// A good PNG of one color.
#[allow(dead_code, reason = "each test binary uses its part")]
pub fn plain_png(width: u32, height: u32) -> Vec<u8> {
    png(width, height, 8, 2, &[], &packed(height as usize * (width as usize * 3 + 1)))
}

fn small_png(between: &[Vec<u8>]) -> Vec<u8> {
    png(64, 64, 8, 2, between, &packed(64 * (64 * 3 + 1)))
}

/// Segments of a JPEG with this frame; the scans are empty.
fn jpeg(marker: u8, width: u16, height: u16, sampling: &[u8], scans: usize) -> Vec<u8> {
    let mut file = b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0".to_vec();
    let segment = |marker: u8, content: &[u8]| {
        [&[0xff, marker][..], &(content.len() as u16 + 2).to_be_bytes(), content].concat()
    };
    file.extend(segment(0xdb, &[&[0][..], &[1; 64]].concat()));
    let parts: Vec<u8> =
        sampling.iter().zip(1u8..).flat_map(|(sampling, id)| [id, *sampling, 0]).collect();
    let (height, width) = (height.to_be_bytes(), width.to_be_bytes());
    file.extend(segment(
        marker,
        &[&[8][..], &height, &width, &[sampling.len() as u8], &parts].concat(),
    ));
    file.extend(segment(
        0xc4,
        &[&[0][..], &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0]].concat(),
    ));
    file.extend(segment(
        0xc4,
        &[&[16][..], &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0]].concat(),
    ));
    let ids: Vec<u8> = (1..=sampling.len() as u8).flat_map(|id| [id, 0]).collect();
    let last = if marker == 0xc2 { 0 } else { 63 };
    for _ in 0..scans {
        file.extend(segment(0xda, &[&[sampling.len() as u8][..], &ids, &[0, last, 0]].concat()));
        file.extend([0x55; 8]);
    }
    file.extend([0xff, 0xd9]);
    file
}

fn webp(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let mut body = b"WEBP".to_vec();
    for (kind, content) in chunks {
        body.extend(*kind);
        body.extend((content.len() as u32).to_le_bytes());
        body.extend(content);
        body.extend(vec![0; content.len() % 2]);
    }
    [b"RIFF", &(body.len() as u32).to_le_bytes()[..], &body].concat()
}

fn vp8x(flags: u8, width: u32, height: u32) -> Vec<u8> {
    [&[flags, 0, 0, 0][..], &(width - 1).to_le_bytes()[..3], &(height - 1).to_le_bytes()[..3]]
        .concat()
}

fn vp8(width: u16, height: u16) -> Vec<u8> {
    [&[0x10, 0, 0, 0x9d, 1, 0x2a][..], &width.to_le_bytes(), &height.to_le_bytes(), &[0x55; 64]]
        .concat()
}

fn vp8l(width: u32, height: u32) -> Vec<u8> {
    [&[0x2f][..], &((width - 1) | (height - 1) << 14).to_le_bytes(), &[0x55; 64]].concat()
}

fn gif(screen: (u16, u16), frames: &[(u16, u16)]) -> Vec<u8> {
    let mut file = [
        b"GIF89a",
        &screen.0.to_le_bytes()[..],
        &screen.1.to_le_bytes(),
        &[0x80, 0, 0, 0, 0, 0, 255, 255, 255],
    ]
    .concat();
    for (width, height) in frames {
        file.extend(
            [
                &[0x2c, 0, 0, 0, 0][..],
                &width.to_le_bytes(),
                &height.to_le_bytes(),
                &[0, 2, 2, 0x4c, 1, 0],
            ]
            .concat(),
        );
    }
    file.push(0x3b);
    file
}

/// All of them. Long, because each entry is one case.
pub fn all() -> Vec<Hostile> {
    let mut all = vec![];
    let mut add = |name, file, word| all.push(Hostile { name, file, word });
    let rgb = |width: usize, height: usize| packed(height * (width * 3 + 1));

    // PNG.
    add(
        "png 30,000 x 30,000",
        png(30_000, 30_000, 8, 2, &[], &packed(1 << 20)),
        "sides of 1 to 8192",
    );
    add(
        "png of 67 million pixels",
        png(8192, 8192, 8, 2, &[], &packed(1 << 20)),
        "at most 40000000 pixels",
    );
    add(
        "png of 16 bits, 288 MB",
        png(6000, 6000, 16, 6, &[], &packed(1 << 20)),
        "176 MiB to decode",
    );
    add("png that ends early", png(6300, 6300, 8, 2, &[], &packed(3 << 20)), "whole PNG");
    let mut broken_late = png(6300, 6300, 8, 2, &[], &rgb(6300, 6300));
    let checksum = broken_late.len() - 12 - 8;
    broken_late[checksum] ^= 1;
    add("png bomb, broken at its end", broken_late, "whole PNG");
    let mut alpha_late = png(6300, 6300, 8, 6, &[], &packed(6300 * (6300 * 4 + 1)));
    let checksum = alpha_late.len() - 12 - 8;
    alpha_late[checksum] ^= 1;
    add("png bomb with transparency, broken at its end", alpha_late, "whole PNG");
    let bomb = packed(500 << 20);
    add(
        "png with a colour profile of 500 MiB",
        small_png(&[chunk(b"iCCP", &[b"p\0\0", &bomb[..]].concat())]),
        "colour profile",
    );
    add(
        "png with a text of 500 MiB",
        small_png(&[chunk(b"zTXt", &[b"t\0\0", &bomb[..]].concat())]),
        "text that unpacks",
    );
    let international = chunk(b"iTXt", &[b"t\0\x01\0en\0t\0", &bomb[..]].concat());
    add(
        "png with an international text of 500 MiB",
        small_png(&[international]),
        "text that unpacks",
    );
    let some = packed(3 << 20);
    let many: Vec<_> = (0..40).map(|_| chunk(b"zTXt", &[b"t\0\0", &some[..]].concat())).collect();
    add("png with 40 texts of 3 MiB", small_png(&many), "text that unpacks");
    add("png 0 x 10", png(0, 10, 8, 2, &[], &packed(10)), "sides of 1 to 8192");
    add("png 10 x 0", png(10, 0, 8, 2, &[], &packed(10)), "sides of 1 to 8192");
    add("png 1 x 100,000", png(1, 100_000, 8, 0, &[], &packed(200_000)), "found 1 x 100000");
    add("png 100,000 x 1", png(100_000, 1, 8, 0, &[], &packed(100_001)), "found 100000 x 1");
    add("png 8,192 x 32", png(8192, 32, 8, 0, &[], &packed(32 * 8193)), "differ at most 200 times");
    let whole = good("up.png");
    add("png cut in half", whole[..whole.len() / 2].to_vec(), "ends before the image");
    add("png without its end", whole[..whole.len() - 12].to_vec(), "ends before the image");
    add("png of wrong magic", [b"\x88", &whole[1..]].concat(), "expected PNG, JPEG, WebP or GIF");
    let control = chunk(b"acTL", &[0, 0, 0, 2, 0, 0, 0, 0]);
    add("animated png", small_png(&[control]), "animated");
    add("png of unknown colours", png(4, 4, 8, 5, &[], &packed(100)), "color type 5");
    add("png of garbage", png(64, 64, 8, 2, &[], &[0x55; 500]), "whole PNG");
    add("png of two headers", small_png(&[chunk(b"IHDR", &[0; 13])]), "two headers");
    add("png palette without one", png(64, 64, 8, 3, &[], &packed(64 * 65)), "whole PNG");

    // JPEG.
    let whole = good("baseline.jpg");
    add("jpeg cut in half", whole[..whole.len() / 2].to_vec(), "ends before the image");
    add("jpeg of no height", jpeg(0xc0, 64, 0, &[0x11], 1), "found 64 x 0");
    add("jpeg 1 x 65,500", jpeg(0xc0, 1, 65_500, &[0x11], 1), "found 1 x 65500");
    add(
        "jpeg 30,000 x 30,000",
        jpeg(0xc0, 30_000, 30_000, &[0x11, 0x11, 0x11], 1),
        "sides of 1 to 8192",
    );
    add("jpeg of 5,000 scans", jpeg(0xc2, 6000, 6000, &[0x11], 5000), "more than 40 scans");
    add(
        "jpeg of 324 MB of coefficients",
        jpeg(0xc2, 6000, 6000, &[0x11, 0x11, 0x11], 1),
        "MiB to decode",
    );
    add("jpeg of impossible sampling", jpeg(0xc0, 64, 64, &[0x01], 1), "impossible sampling");
    add("jpeg that is its beginning", b"\xff\xd8\xff".to_vec(), "ends before the image");
    add("jpeg without an image", b"\xff\xd8\xff\xe0\0\x02\xff\xd9".to_vec(), "without an image");

    // WebP.
    let whole = good("lossy.webp");
    add("webp cut in half", whole[..whole.len() / 2].to_vec(), "ends before the image");
    add("webp of garbage", webp(&[(b"VP8L", vp8l(6000, 3000))]), "whole WebP");
    add("webp 16,383 x 16,383", webp(&[(b"VP8L", vp8l(16_383, 16_383))]), "sides of 1 to 8192");
    add("webp of 252 MB by its way", webp(&[(b"VP8L", vp8l(6000, 6000))]), "MiB to decode");
    add(
        "webp that says it moves",
        webp(&[(b"VP8X", vp8x(2, 64, 64)), (b"VP8 ", vp8(64, 64))]),
        "animated",
    );
    add(
        "webp with a frame",
        webp(&[(b"VP8X", vp8x(0, 64, 64)), (b"ANMF", vec![0; 24])]),
        "animated",
    );
    let two = webp(&[(b"VP8X", vp8x(0, 32, 32)), (b"VP8 ", vp8(16_383, 16_383))]);
    add("webp of two sizes", two, "32 x 32 pixels by its header");
    add("webp without an image", webp(&[(b"VP8X", vp8x(0, 64, 64))]), "without an image");

    // GIF.
    let whole = good("still.gif");
    add("gif cut in half", whole[..whole.len() / 2].to_vec(), "ends before the image");
    add("gif 65,535 x 65,535", gif((65_535, 65_535), &[(65_535, 65_535)]), "sides of 1 to 8192");
    add("gif with a frame of 256 MB", gif((64, 64), &[(8000, 8000)]), "MiB to decode");
    add("gif of little data", gif((6000, 3000), &[(6000, 3000)]), "whole GIF");
    add("animated gif", gif((64, 64), &[(64, 64), (64, 64)]), "animated");
    add("gif 0 x 0", gif((0, 0), &[(1, 1)]), "found 0 x 0");

    // Others.
    let svg = b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>".to_vec();
    add("svg", svg, "SVG");
    add("nothing", vec![], "empty");
    add("pdf", b"%PDF-1.7\n".to_vec(), "PDF");
    add(
        "noise",
        (0..5000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect(),
        "expected PNG, JPEG, WebP or GIF",
    );
    all
}
