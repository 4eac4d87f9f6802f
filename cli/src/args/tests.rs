//! Every command and flag, as it may be typed.

use super::*;
use clap::CommandFactory as _;

fn parse(line: &str) -> Result<Command, clap::Error> {
    Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command)
}

fn generate(line: &str) -> GenerateArgs {
    match parse(line) {
        Ok(Command::Generate(args)) => *args,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_command_definitions_pass_claps_own_checks() {
    Cli::command().debug_assert();
}

#[test]
fn every_form_of_the_contract_is_parsed() {
    for line in [
        "paceline serve",
        "paceline serve --config F",
        "paceline serve org/name --drafter off",
        "paceline generate T",
        "paceline generate",
        "paceline ls",
        "paceline list --json",
        "paceline models --known --json",
        "paceline show D",
        "paceline ps",
        "paceline logs",
        "paceline logs -f target -n 5 --config F",
        "paceline rm org/name",
        "paceline rm smollm2 -y --config F",
        "paceline completions zsh",
        "paceline man",
        "paceline man D",
        "paceline stop --config F",
        "paceline serve --model org/name --drafter lookup --port 9 --threads auto --context 512 --offline",
        "paceline serve --http off --set routing.force=plain --set limits.queue=2",
        "paceline run",
        "paceline run D",
        "paceline run D - --image a.png --image b.png --system S --max-tokens 4 --temperature 0 --seed 1",
        "paceline run org/name Why? --drafter lookup --set target.threads=2 --offline --json -v --config F",
        "paceline generate --prompt T",
        "paceline generate --messages F --image a.png --image b.png --max-tokens 4 --temperature 0.5 --seed 7",
        "paceline generate --token-ids 1,2,3 --top-p 0.9 --top-k 4 --repetition-penalty 1.0 --ignore-eos --logprobs 0 --json",
        "paceline generate --prompt T --presence-penalty -0.5 --frequency-penalty 1 --logit-bias 7=-100 --logit-bias 8=1.5",
        "paceline generate --prompt T --min-tokens 3 --stop-token-id 7 --stop-token-id 8",
        "paceline chat --presence-penalty 1 --logit-bias 7=-1",
        "paceline generate --message T --route speculative --config F --address 127.0.0.1:1 --model m --min-p 0.1",
        "paceline generate --prompt T --json --margins",
        "paceline generate --message T --samples 4 --stop a --stop b --template-arguments {} --reasoning-effort low",
        "paceline chat",
        "paceline chat --no-history",
        "paceline run D --no-history",
        "paceline chat --system S --temperature 0 --stop x --template-arguments {} --reasoning-effort none",
        "paceline status",
        "paceline status --json",
        "paceline top",
        "paceline events --follow --json",
        "paceline events --last 0 --config F",
        "paceline drafter start --model D --timeout 5",
        "paceline drafter stop --timeout 5",
        "paceline drafter swap --model D",
        "paceline drafter start",
        "paceline drafter stop --config F",
        "paceline target swap --model D",
        "paceline target swap --model org/name --timeout 0 --config F",
        "paceline restart gateway --now --timeout 5",
        "paceline restart target",
        "paceline restart drafter",
        "paceline restart supervisor",
        "paceline policy show --json",
        "paceline policy set routing.max_concurrent 2 --config F",
        "paceline routes replay L --set routing.force=plain --set routing.max_context=9 --json",
        "paceline drain --timeout 5",
        "paceline drain --undo",
        "paceline models",
        "paceline models --json",
        "paceline inspect D",
        "paceline inspect org/name --drafter D --json --config F",
        "paceline selftest --model D --drafter D",
        "paceline selftest --config F --prompts 1 --json",
    ] {
        assert!(parse(line).is_ok(), "{line}: {:?}", parse(line));
    }
}

#[test]
fn contradicting_flags_are_refused() {
    for line in [
        "paceline",
        "paceline sing",
        "paceline serve --port 9 --http 127.0.0.1:8",
        "paceline serve --port 65536",
        "paceline serve --set routing.force",
        "paceline run D Q more",
        "paceline run D Q --set x",
        "paceline generate --prompt a --message b",
        "paceline generate --prompt a --token-ids 1",
        "paceline generate --token-ids 1,x",
        "paceline generate --token-ids 1 --image a.png",
        "paceline generate --prompt a --route fast",
        "paceline generate --prompt a --seed -1",
        "paceline generate --prompt a --max-tokens many",
        "paceline generate --prompt a --margins",
        "paceline generate --prompt a --logprobs 2",
        "paceline generate --prompt a --logit-bias 7",
        "paceline generate --prompt a --logit-bias seven=1",
        "paceline generate --prompt a --logit-bias 7=much",
        "paceline generate --prompt a --stop-token-id -1",
        "paceline generate --prompt a --template-arguments {}",
        "paceline generate --prompt a --reasoning-effort low",
        "paceline generate --token-ids 1 --template-arguments {}",
        "paceline generate --prompt a --samples -1",
        "paceline generate --prompt a --stop",
        "paceline serve a --model b",
        "paceline generate a --prompt b",
        "paceline generate a b",
        "paceline stop gateway",
        "paceline restart",
        "paceline restart clock",
        "paceline restart target --timeout 0",
        "paceline events --last 10001",
        "paceline drain --now",
        "paceline drafter",
        "paceline drafter stop --model D",
        "paceline drafter start --timeout 0",
        "paceline drafter swap --timeout soon",
        "paceline target",
        "paceline target swap",
        "paceline target swap --model D --timeout soon",
        "paceline status --yaml",
        "paceline policy",
        "paceline policy set routing.force",
        "paceline policy show routing.force",
        "paceline routes",
        "paceline routes replay",
        "paceline models org/name",
        "paceline inspect",
        "paceline inspect D --drafter",
        "paceline selftest --prompts 0",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn words_of_another_program_reach_it_unchanged() {
    for line in ["paceline bench --sweep --runs 0 --help", "paceline pull org/name -h --offline"] {
        let words: Vec<&str> = line.split(' ').skip(2).collect();
        match parse(line) {
            Ok(Command::Bench(args) | Command::Pull(args)) => assert_eq!(args.words, words),
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn the_help_of_serve_has_the_defaults_of_the_configuration() {
    let help = parse("paceline serve --help").expect_err("help").to_string();
    let words: Vec<&str> = help.split_whitespace().collect();
    let help = words.join(" ");
    let http = paceline_process::Config::default().gateway.http;
    let port = http.rsplit(':').next().expect("a port");
    for word in [
        format!("(gateway.http); off = none [default: {http}]"),
        format!("[default: {port}]"),
        "(limits.context_tokens) [default: auto, the model's context]".to_owned(),
        "[default: auto, all cores]".to_owned(),
    ] {
        assert!(help.contains(&word), "{word:?} in {help}");
    }
}

#[test]
fn out_of_range_numbers_reach_the_service() {
    let args = generate("paceline generate --prompt a --temperature -1 --top-p NaN --max-tokens 0");
    assert_eq!(args.how.temperature, Some(-1.0));
    assert!(args.how.top_p.is_some_and(f32::is_nan));
    assert_eq!(args.how.max_tokens, Some(0));
}

#[test]
fn token_ids_are_a_list() {
    let args = generate("paceline generate --token-ids 1,20,300");
    assert_eq!(args.input.token_ids, Some(TokenIds(vec![1, 20, 300])));
    assert_eq!("4, 5".parse(), Ok(TokenIds(vec![4, 5])));
    assert!("".parse::<TokenIds>().is_err());
}
