//! Nodes that a Rust function computes, in graphs of MLX's own nodes.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_sys::*;

/// Arrays, freed at the end.
struct Graph {
    stream: mlx_stream,
    arrays: Vec<mlx_array>,
}

impl Graph {
    fn new() -> Self {
        // SAFETY: all handles of this file are made here, used on one thread only, and freed once.
        unsafe {
            let cpu = mlx_device_new_type(mlx_device_type__MLX_CPU, 0);
            assert_eq!(mlx_set_default_device(cpu), 0);
            mlx_device_free(cpu);
            Self { stream: mlx_default_cpu_stream_new(), arrays: vec![] }
        }
    }

    fn keep(&mut self, array: mlx_array) -> mlx_array {
        self.arrays.push(array);
        array
    }

    fn matrix(&mut self, values: &[f32], rows: i32) -> mlx_array {
        let shape = [rows, values.len() as i32 / rows];
        // SAFETY: as above; MLX copies the values.
        let array = unsafe {
            mlx_array_new_data(values.as_ptr().cast(), shape.as_ptr(), 2, mlx_dtype__MLX_FLOAT32)
        };
        self.keep(array)
    }

    fn sum(&mut self, a: mlx_array, b: mlx_array) -> mlx_array {
        // SAFETY: as above.
        let result = unsafe {
            let mut result = mlx_array_new();
            assert_eq!(mlx_add(&mut result, a, b, self.stream), 0);
            result
        };
        self.keep(result)
    }

    fn broadcast(&mut self, a: mlx_array, shape: &[i32]) -> mlx_array {
        // SAFETY: as above.
        let result = unsafe {
            let mut result = mlx_array_new();
            assert_eq!(
                mlx_broadcast_to(&mut result, a, shape.as_ptr(), shape.len(), self.stream),
                0
            );
            result
        };
        self.keep(result)
    }

    fn converted(&mut self, a: mlx_array, kind: mlx_dtype) -> mlx_array {
        // SAFETY: as above.
        let result = unsafe {
            let mut result = mlx_array_new();
            assert_eq!(mlx_astype(&mut result, a, kind, self.stream), 0);
            result
        };
        self.keep(result)
    }

    fn transposed(&mut self, a: mlx_array) -> mlx_array {
        // SAFETY: as above.
        let result = unsafe {
            let mut result = mlx_array_new();
            assert_eq!(mlx_transpose(&mut result, a, self.stream), 0);
            result
        };
        self.keep(result)
    }

    fn host(
        &mut self,
        inputs: &[mlx_array],
        shape: &[i32],
        output: HostOutput,
        function: impl Fn(&[HostRows<'_>], &mut [f32]) + Send + Sync + 'static,
    ) -> Option<mlx_array> {
        // SAFETY: the inputs are this graph's.
        let array = unsafe { host_array(inputs, shape, output, function) }?;
        Some(self.keep(array))
    }

    fn values(&self, array: mlx_array) -> Vec<f32> {
        // SAFETY: as above; evaluated before it is read.
        unsafe {
            assert_eq!(mlx_array_eval(array), 0);
            std::slice::from_raw_parts(mlx_array_data_float32(array), mlx_array_size(array))
                .to_vec()
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe {
            self.arrays.iter().for_each(|array| {
                mlx_array_free(*array);
            });
            mlx_stream_free(self.stream);
        }
    }
}

/// Each row of the first input as often as the other has numbers in it, added up by row.
fn row_sums(inputs: &[HostRows<'_>], output: &mut [f32]) {
    for (at, sum) in output.iter_mut().enumerate() {
        *sum = inputs.iter().map(|rows| rows.row(at).iter().sum::<f32>()).sum();
    }
}

#[test]
fn a_host_node_reads_rows_of_any_layout_between_mlx_nodes() {
    let mut graph = Graph::new();
    let a = graph.matrix(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2);
    let double = graph.sum(a, a);
    let across = graph.transposed(double); // rows not in one piece
    let sums = graph.host(&[across], &[3, 1], HostOutput::Fresh, row_sums).expect("made");
    let twice = graph.sum(sums, sums);
    assert_eq!(graph.values(twice), [20.0, 28.0, 36.0]);
    let both = graph.host(&[double, a], &[2, 1], HostOutput::Fresh, row_sums).expect("made");
    assert_eq!(graph.values(both), [18.0, 45.0]);
}

/// Each kind of number as it is stored; rows in front of them.
#[test]
fn a_node_gets_numbers_of_other_types_as_they_are_stored() {
    let mut graph = Graph::new();
    let a = graph.matrix(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2);
    let kinds = [
        mlx_dtype__MLX_FLOAT32,
        mlx_dtype__MLX_FLOAT16,
        mlx_dtype__MLX_BFLOAT16,
        mlx_dtype__MLX_UINT32,
    ];
    let numbers = kinds.map(|kind| graph.converted(a, kind));
    let across = numbers.map(|array| graph.transposed(array));
    for (inputs, order) in
        [(numbers, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), (across, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0])]
    {
        let values = |rows: &[HostRows<'_>], numbers: &[HostNumbers<'_>], out: &mut [f32]| {
            for (out, numbers) in out.chunks_mut(6).zip(numbers) {
                for (at, out) in out.iter_mut().enumerate() {
                    *out = rows[0].row(0)[0]
                        * match numbers {
                            HostNumbers::Float32(numbers) => numbers[at],
                            // Exact in both: 10 bits of fraction, 7 bits of fraction.
                            HostNumbers::Float16(numbers) => half(numbers[at]),
                            HostNumbers::Bfloat16(numbers) => {
                                f32::from_bits(u32::from(numbers[at]) << 16)
                            }
                            HostNumbers::Uint32(numbers) => numbers[at] as f32,
                        };
                }
            }
        };
        // SAFETY: the inputs are this graph's.
        let made = unsafe { host_array_with(&[a], &inputs, &[4, 6], HostOutput::Fresh, values) };
        let made = graph.keep(made.expect("made"));
        assert_eq!(graph.values(made), [order; 4].concat());
    }
    let wide = graph.converted(a, mlx_dtype__MLX_INT64);
    let nothing = |_: &[HostRows<'_>], _: &[HostNumbers<'_>], _: &mut [f32]| {};
    // SAFETY: as above.
    let made = unsafe { host_array_with(&[a], &[wide], &[1], HostOutput::Fresh, nothing) };
    assert!(made.is_none(), "integers of 64 bits have no kind");
}

/// An IEEE half of normal size.
fn half(bits: u16) -> f32 {
    f32::from_bits(((u32::from(bits) & 0x7fff) << 13) + (112 << 23))
}

#[test]
fn a_node_in_place_never_changes_an_array_that_has_another_handle() {
    let mut graph = Graph::new();
    let a = graph.matrix(&[1.0, 2.0, 3.0, 4.0], 2);
    let plus = |inputs: &[HostRows<'_>], output: &mut [f32]| {
        for (row, values) in output.chunks_mut(2).enumerate() {
            values.iter_mut().zip(inputs[0].row(row)).for_each(|(value, more)| *value += more);
        }
    };
    let held = graph.sum(a, a);
    let first = graph.host(&[held, a], &[2, 2], HostOutput::InPlace(1), plus).expect("made");
    let turned = graph.transposed(held);
    let second = graph.host(&[turned, a], &[2, 2], HostOutput::InPlace(1), plus).expect("made");
    assert_eq!(graph.values(first), [3.0, 6.0, 9.0, 12.0]);
    assert_eq!(graph.values(second), [3.0, 8.0, 7.0, 12.0]);
    assert_eq!(graph.values(held), [2.0, 4.0, 6.0, 8.0]);
    assert_eq!(graph.values(a), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn several_outputs_are_written_by_one_call_and_the_first_in_place() {
    let mut graph = Graph::new();
    let a = graph.matrix(&[1.0, 2.0, 3.0, 4.0], 2);
    // SAFETY: handles are freed once; arrays are evaluated before they are read.
    unsafe {
        let mut held = mlx_array_new();
        assert_eq!(mlx_add(&mut held, a, a, graph.stream), 0);
        assert_eq!(mlx_array_eval(held), 0);
        let place = mlx_array_data_float32(held);
        let shapes: [&[i32]; 3] = [&[2, 2], &[2], &[0]];
        let made =
            host_arrays(&[held, a], &[], &shapes, HostOutput::InPlace(1), |inputs, _, outputs| {
                assert_eq!((inputs.len(), outputs.len(), outputs[2].len()), (1, 3, 0));
                for row in 0..2 {
                    outputs[1][row] = inputs[0].row(row).iter().sum();
                    outputs[0][2 * row] += 10.0;
                }
            });
        let made: Vec<_> = made.expect("made").into_iter().map(|array| graph.keep(array)).collect();
        mlx_array_free(held);
        // Evaluated through its second output.
        assert_eq!(graph.values(made[1]), [3.0, 7.0]);
        assert_eq!(graph.values(made[0]), [12.0, 4.0, 16.0, 8.0]);
        assert_eq!(mlx_array_data_float32(made[0]), place, "nobody else needed the first input");
        assert_eq!(graph.values(a), [1.0, 2.0, 3.0, 4.0]);
    }
}

/// As keys and values go from step to step: each node writes into the memory of the node before.
#[test]
fn several_outputs_stay_in_place_from_node_to_node() {
    let mut graph = Graph::new();
    let one = graph.matrix(&[1.0, 1.0], 1);
    let shapes: [&[i32]; 4] = [&[1, 2], &[1, 2], &[1, 2], &[2]];
    // SAFETY: handles are freed once; arrays are evaluated before they are read.
    unsafe {
        let mut held: Vec<mlx_array> = (0..3)
            .map(|_| {
                let mut sum = mlx_array_new();
                assert_eq!(mlx_add(&mut sum, one, one, graph.stream), 0);
                assert_eq!(mlx_array_eval(sum), 0);
                sum
            })
            .collect();
        let places: Vec<_> = held.iter().map(|array| mlx_array_data_float32(*array)).collect();
        for step in 0..3 {
            let made = host_arrays(&held, &[], &shapes, HostOutput::InPlace(3), |_, _, outputs| {
                for (at, output) in outputs.iter_mut().enumerate() {
                    output[0] = if at < 3 { output[0] + at as f32 } else { 7.0 };
                }
            });
            held.drain(..).for_each(|array| {
                mlx_array_free(array);
            });
            let mut made = made.expect("made");
            let last = made.pop().expect("four outputs");
            assert_eq!(graph.values(last)[0], 7.0);
            mlx_array_free(last);
            held = made;
            for (at, array) in held.iter().enumerate() {
                assert_eq!(mlx_array_data_float32(*array), places[at], "step {step}: output {at}");
                let expected = 2.0 + (at * (step + 1)) as f32;
                assert_eq!(graph.values(*array), [expected, 2.0], "step {step}: output {at}");
            }
        }
        held.into_iter().for_each(|array| {
            mlx_array_free(array);
        });
    }
}

/// Without a handler of ours MLX ends the process at its first error.
unsafe extern "C" fn quiet(_: *const std::ffi::c_char, _: *mut std::ffi::c_void) {}

#[test]
fn memory_that_runs_out_is_an_error_of_the_evaluation() {
    // SAFETY: as above; the handler has no data.
    unsafe { mlx_set_error_handler(Some(quiet), std::ptr::null_mut(), None) };
    let mut graph = Graph::new();
    let one = graph.matrix(&[1.0], 1);
    // 2^60 views of one number: they take no memory until a function wants them in one piece.
    let vast = graph.broadcast(one, &[1 << 30, 1 << 30]);
    let calls = Arc::new(AtomicUsize::new(0));
    let count = |output: &mut [f32], calls: &AtomicUsize| {
        calls.fetch_add(1, Ordering::Relaxed);
        output.fill(1.0);
    };
    let seen = Arc::clone(&calls);
    let first = graph
        .host(&[vast], &[1], HostOutput::Fresh, move |_, output| count(output, &seen))
        .expect("made");
    let seen = Arc::clone(&calls);
    let behind = graph
        .host(&[first], &[1], HostOutput::Fresh, move |_, output| count(output, &seen))
        .expect("made");
    // SAFETY: as above.
    assert_eq!(unsafe { mlx_array_eval(behind) }, 1);
    assert_eq!(
        calls.load(Ordering::Relaxed),
        0,
        "no function runs on numbers that were never written"
    );
    let two = graph.sum(one, one);
    assert_eq!(graph.values(two), [2.0], "the next graph is computed");
}

#[test]
fn an_output_that_does_not_fit_memory_is_an_error_of_the_evaluation() {
    // SAFETY: as above; the handler has no data.
    unsafe { mlx_set_error_handler(Some(quiet), std::ptr::null_mut(), None) };
    let mut graph = Graph::new();
    let one = graph.matrix(&[1.0], 1);
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    // The first output fits, the second one has 2^62 bytes. A function that ran would be handed
    // memory that is not there, so it only counts.
    let count = move |_: &[HostRows<'_>], _: &[HostNumbers<'_>], _: &mut [&mut [f32]]| {
        seen.fetch_add(1, Ordering::Relaxed);
    };
    let shapes: [&[i32]; 2] = [&[2], &[1 << 30, 1 << 30]];
    // SAFETY: as above.
    let made = unsafe { host_arrays(&[one], &[], &shapes, HostOutput::Fresh, count) };
    let made: Vec<_> = made.expect("made").into_iter().map(|array| graph.keep(array)).collect();
    // SAFETY: as above.
    assert_eq!(unsafe { mlx_array_eval(made[0]) }, 1);
    assert_eq!(calls.load(Ordering::Relaxed), 0, "no function gets memory that is not there");
    let two = graph.sum(one, one);
    assert_eq!(graph.values(two), [2.0], "the next graph is computed");
}

#[test]
fn impossible_nodes_are_refused_and_free_their_function() {
    let lives = Arc::new(AtomicUsize::new(0));
    struct Life(Arc<AtomicUsize>);
    impl Drop for Life {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut graph = Graph::new();
    let a = graph.matrix(&[1.0, 2.0], 1);
    let function = |life: Life| {
        move |_: &[HostRows<'_>], output: &mut [f32]| {
            let _ = &life;
            output.fill(7.0);
        }
    };
    let life = || Life(Arc::clone(&lives));
    assert!(graph.host(&[a], &[-1], HostOutput::Fresh, function(life())).is_none());
    assert!(graph.host(&[a], &[3], HostOutput::InPlace(1), function(life())).is_none());
    assert!(graph.host(&[], &[3], HostOutput::InPlace(1), function(life())).is_none());
    // SAFETY: as above.
    let whole = unsafe { mlx_array_new_int(3) };
    let whole = graph.keep(whole);
    assert!(graph.host(&[whole], &[1], HostOutput::Fresh, function(life())).is_none());
    assert_eq!(lives.load(Ordering::Relaxed), 4);
    let seven = graph.host(&[a], &[2, 2], HostOutput::Fresh, function(life())).expect("made");
    assert_eq!(graph.values(seven), [7.0; 4]);
    assert_eq!(
        graph.host(&[], &[0], HostOutput::Fresh, function(life())).map(|empty| graph.values(empty)),
        Some(vec![])
    );
    drop(graph);
    assert_eq!(lives.load(Ordering::Relaxed), 6);
}
