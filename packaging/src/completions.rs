//! Makes shell completions: those of clap, extended by the names that `-o` takes and by the
//! directories on which something is mounted.

use clap::{ArgAction, Command, ValueHint};
use clap_complete::{Shell, generate};

/// A shell, and the name of the file in which it looks for completions.
pub(crate) const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "nfsrdma"),
    (Shell::Zsh, "_nfsrdma"),
    (Shell::Fish, "nfsrdma.fish"),
];

/// The script for `shell`. `words` are the values of `-o`.
pub(crate) fn script(shell: Shell, command: &Command, words: &[String]) -> Result<String, String> {
    let mut command = with_hints(command.clone());
    let takers = mount_takers(&command);
    let name = command.get_name().to_string();
    let mut out = Vec::new();
    generate(shell, &mut command, name, &mut out);
    let script = String::from_utf8(out).map_err(|error| error.to_string())?;
    match shell {
        Shell::Bash => Ok(script + &bash(words, &takers)),
        Shell::Zsh => zsh(&script, words),
        Shell::Fish => Ok(script + &fish(words, &takers)),
        other => Err(format!("no completions for {other}")),
    }
}

/// A hint that stands for "a mount of this program", which clap lacks. No argument is a user.
const MOUNT: ValueHint = ValueHint::Username;

/// Adds hints by the names of values. The directory of `mount` may be any one; those of other
/// commands are mounts.
fn with_hints(command: Command) -> Command {
    command.mut_subcommands(|sub| {
        let dir = match sub.get_name() {
            "mount" => ValueHint::DirPath,
            _ => MOUNT,
        };
        sub.mut_args(|arg| {
            let names = arg.get_value_names().unwrap_or_default();
            let hint = match names.first().map(|name| name.as_str()) {
                Some("DIR") => dir,
                Some("FILE") => ValueHint::FilePath,
                Some("SERVER") => ValueHint::Hostname,
                _ => return arg,
            };
            arg.value_hint(hint)
        })
    })
}

/// A command that has a mount as its argument.
struct MountTaker {
    name: String,
    /// Whether it takes any number of mounts; otherwise only the first argument is one.
    many: bool,
    /// The options whose value is a separate word.
    valued: Vec<String>,
}

fn mount_takers(command: &Command) -> Vec<MountTaker> {
    let taker = |sub: &Command| {
        let mount = sub
            .get_arguments()
            .find(|arg| arg.get_value_hint() == MOUNT)?;
        let mut valued = Vec::new();
        for arg in sub.get_arguments().filter(|arg| !arg.is_positional()) {
            // The value of an option that may be given without one is part of the same word.
            let min = arg.get_num_args().map_or(1, |number| number.min_values());
            if arg.get_action().takes_values() && min > 0 {
                valued.extend(arg.get_long().map(|long| format!("--{long}")));
                valued.extend(arg.get_short().map(|short| format!("-{short}")));
            }
        }
        Some(MountTaker {
            name: sub.get_name().to_string(),
            many: matches!(mount.get_action(), ArgAction::Append),
            valued,
        })
    };
    command.get_subcommands().filter_map(taker).collect()
}

/// Precedes clap's function: completes the last of words joined by commas, and mounts.
fn bash(words: &[String], takers: &[MountTaker]) -> String {
    let mut cases = String::new();
    for taker in takers {
        let most = if taker.many { 99 } else { 0 };
        let valued = taker.valued.join(" ");
        cases += &format!(
            "        {}) most={most} valued=' {valued} ' ;;\n",
            taker.name
        );
    }
    format!(
        r#"
# The mounts that begin with what is typed, quoted. Characters are octal in the table.
_nfsrdma_mounts() {{
    local source dir type rest word
    COMPREPLY=()
    while read -r source dir type rest; do
        [[ $type == fuse.nfsrdma ]] || continue
        printf -v dir %b "${{dir//\\/\\0}}"
        printf -v word %q "$dir"
        if [[ $dir == "$1"* || $word == "$1"* ]]; then
            COMPREPLY+=("$word")
        fi
    done </proc/self/mounts
}}

# Whether the word to complete is a mount: by the command, and the arguments before it.
_nfsrdma_wants_mount() {{
    local most valued at before=0
    case ${{COMP_WORDS[1]-}} in
{cases}        *) return 1 ;;
    esac
    [[ ${{COMP_WORDS[COMP_CWORD]}} != -* && $valued != *" ${{COMP_WORDS[COMP_CWORD-1]}} "* ]] || return 1
    for ((at = 2; at < COMP_CWORD; at++)); do
        if [[ ${{COMP_WORDS[at]}} != -* && $valued != *" ${{COMP_WORDS[at-1]}} "* ]]; then
            before=$((before + 1))
        fi
    done
    ((COMP_CWORD > 1 && before <= most))
}}

_nfsrdma_options() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
    if _nfsrdma_wants_mount; then
        _nfsrdma_mounts "$cur"
        return
    fi
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

/// Replaces "any text" as the value of `-o`, and the hint that stands for a mount.
fn zsh(script: &str, words: &[String]) -> Result<String, String> {
    const ANY: &str = ":OPTIONS:_default";
    const MOUNTS: &str = ":_users'";
    const FIRST: &str = "_nfsrdma() {";
    if [ANY, MOUNTS, FIRST]
        .iter()
        .any(|part| !script.contains(part))
    {
        return Err("clap_complete writes zsh scripts differently now: mend zsh()".into());
    }
    let functions = format!(
        r#"_nfsrdma_options() {{
    compset -P '*,'
    compadd -S '' -- {}
}}

_nfsrdma_mounts() {{
    local -a dirs
    local source dir type rest
    while read -r source dir type rest; do
        # Characters are octal in the table.
        [[ $type == fuse.nfsrdma ]] && dirs+=("${{(g:o:)dir}}")
    done </proc/self/mounts
    if (($#dirs)); then compadd -a dirs; else _files -/; fi
}}

{FIRST}"#,
        words.join(" ")
    );
    Ok(script
        .replace(ANY, ":OPTIONS:_nfsrdma_options")
        .replace(MOUNTS, ":_nfsrdma_mounts'")
        .replacen(FIRST, &functions, 1))
}

fn fish(words: &[String], takers: &[MountTaker]) -> String {
    // An argument other than a mount may be a file.
    let (only, with_files): (Vec<_>, Vec<_>) = takers
        .iter()
        .map(|taker| taker.name.as_str())
        .partition(|&name| name != "capture");
    format!(
        r#"
function __nfsrdma_options
    set -l done (string match -r '^.*,' -- (commandline -ct))
    for word in {}
        echo "$done$word"
    end
end
complete -c nfsrdma -n "__fish_seen_subcommand_from mount exports ping" -s o -l options -r -f -a '(__nfsrdma_options)'

# Characters are octal in the table.
function __nfsrdma_mounts
    while read -l source dir type rest
        if test "$type" = fuse.nfsrdma
            printf '%b\n' (string replace -a '\\' '\\0' -- $dir)
        end
    end </proc/self/mounts
end
complete -c nfsrdma -n "__fish_seen_subcommand_from {}" -f -a '(__nfsrdma_mounts)'
complete -c nfsrdma -n "__fish_seen_subcommand_from {}" -a '(__nfsrdma_mounts)'
"#,
        words.join(" "),
        only.join(" "),
        with_files.join(" ")
    )
}
