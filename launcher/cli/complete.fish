# Completion of the launcher for fish: `launcher complete --print fish`.

function __launcher_candidates
    set -l words (commandline -opc)
    set -l skip 1
    test "$words[2]" = -m; and set skip 3
    set -l program $words[1..$skip]
    set program[1] (string replace -r '^~/' "$HOME/" -- $program[1])
    set -l own $words[(math $skip + 1)..-1]
    set -lx LAUNCHER_COMPLETE (string join \n -- $own (commandline -ct) . | string collect)
    $program complete --candidates 2>/dev/null
end

function __launcher_behind_python
    set -l words (commandline -opc)
    test (count $words) -ge 3; and test "$words[2]" = -m; and test "$words[3]" = launcher
end

complete -c launcher -f -a '(__launcher_candidates)'
# Completes arguments of python only after `-m launcher`.
complete -c python -n __launcher_behind_python -f -a '(__launcher_candidates)'
complete -c python3 -n __launcher_behind_python -f -a '(__launcher_candidates)'
