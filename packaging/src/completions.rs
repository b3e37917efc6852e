//! Shell completions: those of clap, and the names that `-o` takes, which clap knows nothing
//! of.

use clap::{Command, ValueHint};
use clap_complete::{Shell, generate};

/// A shell and the file its completions are looked for by.
pub(crate) const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "nfsrdma"),
    (Shell::Zsh, "_nfsrdma"),
    (Shell::Fish, "nfsrdma.fish"),
];

/// The script for `shell`; `words` are what `-o` takes.
pub(crate) fn script(shell: Shell, command: &Command, words: &[String]) -> Result<String, String> {
    let mut command = with_hints(command.clone());
    let name = command.get_name().to_string();
    let mut out = Vec::new();
    generate(shell, &mut command, name, &mut out);
    let script = String::from_utf8(out).map_err(|error| error.to_string())?;
    match shell {
        Shell::Bash => Ok(script + &bash(words)),
        Shell::Zsh => zsh(&script, words),
        Shell::Fish => Ok(script + &fish(words)),
        other => Err(format!("no completions for {other}")),
    }
}

/// What an argument is, told by the name of its value.
fn with_hints(command: Command) -> Command {
    command.mut_subcommands(|sub| {
        sub.mut_args(|arg| {
            let names = arg.get_value_names().unwrap_or_default();
            let hint = match names.first().map(|name| name.as_str()) {
                Some("DIR") => ValueHint::DirPath,
                Some("FILE") => ValueHint::FilePath,
                Some("SERVER") => ValueHint::Hostname,
                _ => return arg,
            };
            arg.value_hint(hint)
        })
    })
}

/// Before clap's function: the last of the words that commas join.
fn bash(words: &[String]) -> String {
    format!(
        r#"
_nfsrdma_options() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
    # readline cuts words at '=': what stands before it belongs to this one.
    if [[ $prev == "=" ]]; then
        cur="${{COMP_WORDS[COMP_CWORD-2]}}=$cur"
        prev=${{COMP_WORDS[COMP_CWORD-3]}}
    elif [[ $cur == "=" ]]; then
        cur="$prev="
        prev=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    if [[ $prev != -o && $prev != --options ]]; then
        _nfsrdma "$@"
        return
    fi
    local done="" last=$cur
    if [[ $cur == *,* ]]; then
        done="${{cur%,*}}," last=${{cur##*,}}
    fi
    local word
    COMPREPLY=()
    for word in {words}; do
        if [[ $word == "$last"* ]]; then
            COMPREPLY+=("$done$word")
        fi
    done
    if [[ $cur == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${{COMPREPLY[@]#"${{cur%=*}}="}}")
    fi
    compopt -o nospace -o nosort 2>/dev/null || true
}}
complete -F _nfsrdma_options -o bashdefault -o default nfsrdma
"#,
        words = words.join(" ")
    )
}

/// In the place of "any text" for the value of `-o`.
fn zsh(script: &str, words: &[String]) -> Result<String, String> {
    const ANY: &str = ":OPTIONS:_default";
    const FIRST: &str = "_nfsrdma() {";
    if !script.contains(ANY) || !script.contains(FIRST) {
        return Err("clap_complete writes zsh scripts differently now: mend zsh()".into());
    }
    let function = format!(
        "_nfsrdma_options() {{\n    compset -P '*,'\n    compadd -S '' -- {}\n}}\n\n{FIRST}",
        words.join(" ")
    );
    Ok(script
        .replace(ANY, ":OPTIONS:_nfsrdma_options")
        .replacen(FIRST, &function, 1))
}

fn fish(words: &[String]) -> String {
    format!(
        r#"
function __nfsrdma_options
    set -l done (string match -r '^.*,' -- (commandline -ct))
    for word in {}
        echo "$done$word"
    end
end
complete -c nfsrdma -n "__fish_seen_subcommand_from mount exports ping" -s o -l options -r -f -a '(__nfsrdma_options)'
"#,
        words.join(" ")
    )
}
