//! Counts what a graph consists of, by MLX's own printer.

use std::ffi::{CStr, c_char, c_int, c_void};

use mlx_rs::Array;

unsafe extern "C" {
    fn open_memstream(text: *mut *mut c_char, size: *mut usize) -> *mut mlx_sys::FILE;
    fn fclose(file: *mut mlx_sys::FILE) -> c_int;
    fn free(memory: *mut c_void);
}

/// Primitives that are not evaluated yet, one a line of the printer.
pub(crate) fn primitives(outputs: &[Array]) -> Result<usize, String> {
    let (mut text, mut size) = (std::ptr::null_mut(), 0);
    let handles: Vec<_> = outputs.iter().map(Array::as_ptr).collect();
    // SAFETY: the stream is closed before its buffer is read, all handles are live until then, and
    // what was made here is freed here once.
    let printed = unsafe {
        let file = open_memstream(&raw mut text, &raw mut size);
        if file.is_null() {
            return Err("no stream to print a graph to".into());
        }
        let namer = mlx_sys::mlx_node_namer_new();
        let all = mlx_sys::mlx_vector_array_new_data(handles.as_ptr(), handles.len());
        let failed = mlx_sys::mlx_print_graph(file, namer, all);
        mlx_sys::mlx_vector_array_free(all);
        mlx_sys::mlx_node_namer_free(namer);
        fclose(file);
        let printed = CStr::from_ptr(text).to_string_lossy().into_owned();
        free(text.cast());
        if failed != 0 {
            return Err("MLX does not print this graph".into());
        }
        printed
    };
    Ok(printed.lines().filter(|line| line.contains("->")).count())
}
