/* replay_main.c - runs every file named on the command line, and every file of a folder named there, through a fuzz target.
 * So the corpora are tests under any compiler. Exit 1 when a file cannot be read or none was given. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The bytes are copied into memory of exactly their size, so that a sanitizer sees a read past the end. */
static int replay(const char *path) {
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0) {
        perror(path);
        if (f) fclose(f);
        return 0;
    }
    size_t n = (size_t)st.st_size;
    uint8_t *p = malloc(n > 0 ? n : 1);
    int ok = p && fread(p, 1, n, f) == n;
    fclose(f);
    if (ok) LLVMFuzzerTestOneInput(p, n);
    else fprintf(stderr, "%s: cannot be read\n", path);
    free(p);
    return ok;
}

int main(int argc, char **argv) {
    int done = 0, bad = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d) {
            if (replay(argv[i])) done++;
            else bad++;
            continue;
        }
        const struct dirent *e;
        while ((e = readdir(d)) != NULL) {
            if (e->d_name[0] == '.') continue;
            size_t n = strlen(argv[i]) + strlen(e->d_name) + 2;
            char *path = malloc(n);
            if (!path) return 1;
            snprintf(path, n, "%s/%s", argv[i], e->d_name);
            if (replay(path)) done++;
            else bad++;
            free(path);
        }
        closedir(d);
    }
    printf("replayed %d inputs\n", done);
    return bad > 0 || done == 0;
}
