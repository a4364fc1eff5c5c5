# A text of a small grammar: sentences, documents parted by three newlines. The same everywhere.
# usage: awk -v docs=N -v least=N -v range=N -f grammar.awk    document d (from 0) has least + d % range sentences
BEGIN {
    split("the a one this every", det, " "); split("cat dog river house teacher stone garden letter", noun, " ")
    split("sees finds makes takes leaves likes", verb, " "); split("old small quiet bright green", adj, " ")
    x = 12345
    for (d = 0; d < docs; d++) {
        for (s = 0; s < least + d % range; s++) {
            line = ""
            for (h = 0; h < 2; h++) {
                x = (x * 1103515 + 12345) % 2147483; line = line det[1 + x % 5] " "
                x = (x * 1103515 + 12345) % 2147483; if (x % 2) line = line adj[1 + int(x / 7) % 5] " "
                x = (x * 1103515 + 12345) % 2147483; line = line noun[1 + x % 8]
                if (h) { line = line ".\n"; continue }
                x = (x * 1103515 + 12345) % 2147483; line = line " " verb[1 + x % 6] " "
            }
            printf "%s", line
        }
        printf "\n\n\n"
    }
}
