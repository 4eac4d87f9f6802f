use super::*;

/// An image of one row, two by one or one by two, by hand.
fn pixels(data: &[u8], color: ColorType, size: Size, orientation: Orientation) -> Pixels {
    let Size { width, height } = size;
    let header = Header { kind: Kind::Png, width, height, orientation, decoding_bytes: 0 };
    Pixels { data: data.to_vec(), color, header }
}

fn rows(pixels: &Pixels) -> Vec<Vec<u8>> {
    let Size { width, height } = pixels.size();
    let row = |y| {
        let mut line = vec![0; width as usize * 3];
        pixels.row(y, &mut line);
        line.chunks(3).map(|pixel| pixel[0]).collect()
    };
    (0..height).map(row).collect()
}

#[test]
fn every_orientation_is_turned_upright() {
    // 1 2 3 above 4 5 6.
    let of = |orientation| {
        rows(&pixels(&[1, 2, 3, 4, 5, 6], ColorType::L8, Size { width: 3, height: 2 }, orientation))
    };
    assert_eq!(of(Orientation::NoTransforms), [[1, 2, 3], [4, 5, 6]]);
    assert_eq!(of(Orientation::FlipHorizontal), [[3, 2, 1], [6, 5, 4]]);
    assert_eq!(of(Orientation::Rotate180), [[6, 5, 4], [3, 2, 1]]);
    assert_eq!(of(Orientation::FlipVertical), [[4, 5, 6], [1, 2, 3]]);
    assert_eq!(of(Orientation::Rotate90FlipH), [[1, 4], [2, 5], [3, 6]]);
    assert_eq!(of(Orientation::Rotate90), [[4, 1], [5, 2], [6, 3]]);
    assert_eq!(of(Orientation::Rotate270FlipH), [[6, 3], [5, 2], [4, 1]]);
    assert_eq!(of(Orientation::Rotate270), [[3, 6], [2, 5], [1, 4]]);
}

#[test]
fn deep_and_transparent_samples_become_bytes_on_white() {
    let line = |data: &[u8], color| {
        let mut line = [0; 3];
        pixels(data, color, Size { width: 1, height: 1 }, Orientation::NoTransforms)
            .row(0, &mut line);
        line
    };
    let deep = |samples: &[u16]| {
        samples.iter().flat_map(|sample| sample.to_ne_bytes()).collect::<Vec<u8>>()
    };
    assert_eq!(line(&[7], ColorType::L8), [7; 3]);
    assert_eq!(line(&[7, 0], ColorType::La8), [255; 3]);
    assert_eq!(line(&[1, 2, 3], ColorType::Rgb8), [1, 2, 3]);
    assert_eq!(line(&[0, 100, 255, 128], ColorType::Rgba8), [127, 177, 255]);
    assert_eq!(line(&deep(&[0x12ff]), ColorType::L16), [0x12; 3]);
    assert_eq!(line(&deep(&[0x1200, 0xffff]), ColorType::La16), [0x12; 3]);
    assert_eq!(line(&deep(&[0x0100, 0x02ff, 0x0300]), ColorType::Rgb16), [1, 2, 3]);
    assert_eq!(line(&deep(&[0, 0, 0, 0x00ff]), ColorType::Rgba16), [255; 3]);
}
