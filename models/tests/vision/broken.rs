//! Checkpoints of Qwen3.5 that are broken in one place: each is refused by the name of a tensor.

use paceline_models::load_target;
use safetensors::Dtype;
use serde_json::Value;

use crate::changed::{Tensor, Tensors, changed};
use crate::hybrid::{DENSE, EXPERTS, Patches, channels_last, numbers, store, to_mlx};
use crate::scene::{folder, load};

fn refusal(name: &str, tensors: impl Fn(&mut Tensors)) -> String {
    let dir = changed(name, |_: &mut Value| {}, tensors);
    let refused = load_target(dir.path(), &mut |_, _| {}).err();
    refused.map_or("loads".into(), |error| paceline_vocabulary::chain(&error))
}

/// Names of the tensors of a golden checkpoint.
fn names(name: &str) -> Vec<String> {
    let bytes = std::fs::read(folder(name).join("model.safetensors")).expect("in the repository");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
    tensors.names().into_iter().map(ToOwned::to_owned).collect()
}

fn tensor<'a>(all: &'a mut Tensors, name: &str) -> &'a mut Tensor {
    all.get_mut(name).expect("it is there")
}

/// Change to all tensors.
type Change = Box<dyn Fn(&mut Tensors)>;
/// Change to the tensor of this name.
type Fault = fn(&mut Tensors, &str);

/// Drops the last of the rows.
fn shorten(tensor: &mut Tensor) {
    let rows = tensor.shape[0];
    tensor.bytes.truncate(tensor.bytes.len() / rows * (rows - 1));
    tensor.shape[0] -= 1;
}

#[test]
fn each_tensor_that_is_missing_or_of_another_shape_or_type_is_refused_by_its_name() {
    load(DENSE);
    let faults: [(&str, Fault); 4] = [
        ("missing", |all, name| drop(all.remove(name))),
        ("a row less", |all, name| shorten(tensor(all, name))),
        ("one more axis", |all, name| tensor(all, name).shape.push(1)),
        ("integers", |all, name| {
            let tensor = tensor(all, name);
            tensor.bytes = vec![0; tensor.shape.iter().product::<usize>() * 4];
            tensor.dtype = Dtype::I32;
        }),
    ];
    let mut refused = 0;
    for checkpoint in [DENSE, EXPERTS] {
        for name in names(checkpoint) {
            for (what, fault) in faults {
                let found = refusal(checkpoint, |all| fault(all, &name));
                assert!(found.contains(&name), "{checkpoint}, {name}, {what}: {found}");
                refused += 1;
            }
        }
    }
    eprintln!("{refused} checkpoints are refused");
}

#[test]
fn tensors_that_no_part_takes_are_refused_by_their_names() {
    load(DENSE);
    for name in [
        "model.visual.blocks.3.norm1.weight",
        "model.visual.deepstack_merger_list.0.norm.weight",
        "model.visual.merger.norm.scale",
        "model.language_model.layers.0.self_attn.q_proj.weight",
        "model.language_model.layers.1.linear_attn.A_log",
    ] {
        let found = refusal(DENSE, |all| {
            let more = Tensor { dtype: Dtype::F32, shape: vec![1], bytes: vec![0; 4] };
            all.insert(name.into(), more);
        });
        assert!(found.contains(&format!("does not use, the first is {name}")), "{found}");
    }
}

/// Renames the tensors whose names begin so.
fn rename(all: &mut Tensors, from: &str, to: &str) {
    for (name, tensor) in std::mem::take(all) {
        let renamed = name.strip_prefix(from).map(|rest| format!("{to}{rest}"));
        all.insert(renamed.unwrap_or(name), tensor);
    }
}

#[test]
fn names_of_two_layouts_in_one_checkpoint_are_refused() {
    load(DENSE);
    let mlx = |all: &mut Tensors| to_mlx(all, Patches::ChannelsLast);
    let text = "model.language_model";
    let cases: [(&str, Change); 5] = [
        ("vision_tower.", Box::new(|all| rename(all, "model.visual.", "vision_tower."))),
        ("language_model.model.layers.2.", {
            let to = "language_model.model.layers.2.";
            Box::new(move |all| rename(all, &format!("{text}.layers.2."), to))
        }),
        ("model.layers.1.", {
            Box::new(move |all| rename(all, &format!("{text}.layers.1."), "model.layers.1."))
        }),
        ("model.visual.", {
            Box::new(move |all| {
                mlx(all);
                rename(all, "vision_tower.", "model.visual.");
            })
        }),
        ("model.language_model.norm.weight", {
            Box::new(move |all| {
                mlx(all);
                rename(all, "language_model.model.norm.", "model.language_model.norm.");
            })
        }),
    ];
    for (begins, change) in cases {
        let found = refusal(DENSE, change);
        assert!(found.contains(&format!("tensor {begins}")), "{begins}: {found}");
        assert!(found.contains("its name is of another layout than"), "{begins}: {found}");
    }
}

#[test]
fn a_convolution_of_another_writer_than_its_name_or_its_neighbours_is_refused() {
    load(DENSE);
    let convolution = |layer: usize| format!("layers.{layer}.linear_attn.conv1d.weight");
    // MLX's names around a convolution of transformers, and the other way round.
    let found = refusal(DENSE, |all| {
        to_mlx(all, Patches::ChannelsLast);
        let weight = tensor(all, &format!("language_model.model.{}", convolution(2)));
        // [channels, taps, 1] with the axis of taps at the end.
        weight.shape.swap(1, 2);
    });
    let name = format!("tensor language_model.model.{}: its axes", convolution(2));
    assert!(found.contains(&name) && found.contains("in the order of transformers"), "{found}");
    let found = refusal(DENSE, |all| {
        channels_last(tensor(all, &format!("model.language_model.{}", convolution(0))));
    });
    let name = format!("tensor model.language_model.{}: its axes", convolution(0));
    assert!(found.contains(&name) && found.contains("in the order of MLX"), "{found}");
    // Names that both write.
    let found = refusal(DENSE, |all| {
        all.retain(|name, _| !name.contains("visual"));
        rename(all, "model.language_model.", "model.");
        channels_last(tensor(all, &format!("model.{}", convolution(2))));
    });
    let name = format!("tensor model.{}: its axes", convolution(2));
    let other = format!("those of model.{}", convolution(0));
    assert!(found.contains(&name) && found.contains(&other), "{found}");
    assert!(found.contains("convert the checkpoint again from the original"), "{found}");
}

#[test]
fn norms_that_are_stored_less_1_in_the_layout_of_mlx_are_refused() {
    load(DENSE);
    let less_1 = |all: &mut Tensors, wanted: &str| {
        for (_, tensor) in all.iter_mut().filter(|(name, _)| name.contains(wanted)) {
            let less: Vec<f32> = numbers(tensor).iter().map(|number| number - 1.0).collect();
            store(tensor, &less);
        }
    };
    for wanted in ["input_layernorm", "layers.1.post_attention_layernorm", "model.norm"] {
        let found = refusal(DENSE, |all| {
            to_mlx(all, Patches::ChannelsLast);
            less_1(all, wanted);
        });
        assert!(found.contains("tensor language_model.model."), "{wanted}: {found}");
        assert!(found.contains(wanted) && found.contains("stored less 1"), "{wanted}: {found}");
    }
    let found = refusal(DENSE, |all| to_mlx(all, Patches::ChannelsLast));
    assert_eq!(found, "loads");
}
