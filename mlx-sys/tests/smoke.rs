//! The library loads, computes, and gives its numbers back, through the C API alone.

use mlx_sys::*;

#[test]
fn a_product_of_two_matrices_is_read_back() {
    // SAFETY: every handle is made here, used on this thread only, and freed once; `data` outlives
    // the copy made of it.
    unsafe {
        let stream = mlx_default_cpu_stream_new();
        let data = [1.0f32, 2.0, 3.0, 4.0];
        let a =
            mlx_array_new_data(data.as_ptr().cast(), [2, 2].as_ptr(), 2, mlx_dtype__MLX_FLOAT32);
        let mut product = mlx_array_new();
        assert_eq!(mlx_matmul(&mut product, a, a, stream), 0);
        assert_eq!(mlx_array_eval(product), 0);
        let values = std::slice::from_raw_parts(mlx_array_data_float32(product), 4);
        assert_eq!(values, [7.0, 10.0, 15.0, 22.0]);
        mlx_array_free(product);
        mlx_array_free(a);
        mlx_stream_free(stream);
    }
}

#[test]
fn half_precision_values_cross_as_their_bits() {
    // SAFETY: as above.
    unsafe {
        let stream = mlx_default_cpu_stream_new();
        let one_and_a_half = mlx_array_new_float(1.5);

        let mut half = mlx_array_new();
        assert_eq!(mlx_astype(&mut half, one_and_a_half, mlx_dtype__MLX_FLOAT16, stream), 0);
        assert_eq!(mlx_array_eval(half), 0);
        let mut bits = float16_t(0);
        assert_eq!(mlx_array_item_float16(&mut bits, half), 0);
        assert_eq!((bits.0, (*mlx_array_data_float16(half)).0), (0x3e00, 0x3e00));

        let mut brain = mlx_array_new();
        assert_eq!(mlx_astype(&mut brain, one_and_a_half, mlx_dtype__MLX_BFLOAT16, stream), 0);
        assert_eq!(mlx_array_eval(brain), 0);
        let mut bits = 0;
        assert_eq!(mlx_array_item_bfloat16(&mut bits, brain), 0);
        assert_eq!((bits, *mlx_array_data_bfloat16(brain)), (0x3fc0, 0x3fc0));

        for array in [one_and_a_half, half, brain] {
            mlx_array_free(array);
        }
        mlx_stream_free(stream);
    }
}

#[test]
fn a_device_has_figures_and_texts_under_keys_of_their_own() {
    for key in [c"no_such_key", c"device_name"] {
        assert_eq!(device_figure(false, key), None);
    }
    assert!(device_text(false, c"device_name").is_some_and(|name| !name.is_empty()));
    assert_eq!(device_text(false, c"no_such_key"), None);
    // Metal's bound; the CPU has none.
    assert_eq!(device_figure(false, c"max_recommended_working_set_size"), None);
}
