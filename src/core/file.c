/* file.c - maps, whole-file reads, atomic writes, line logs and folders.
 * Invariant: no path is ever seen half-written under its final name, and every write, fsync and close is checked. */
#include "core/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/mem.h"

/* Between the name of a file and the numbers of the writer at work on it. */
#define TEMPORARY ".tmp-"

enum { BUFFER_BYTES = 1 << 20 };

static const char *hint(int e) {
    switch (e) {
    case ENOSPC:
    case EDQUOT: return "; free some space and run again";
    case EFBIG: return "; the file size limit is too small (ulimit -f)";
    case EACCES:
    case EPERM:
    case EROFS: return "; choose a place you may write to, or change its permissions";
    case EMFILE:
    case ENFILE: return "; raise the limit of open files (ulimit -n)";
    default: return "";
    }
}

static ida_status io_error(const char *what, const char *path, int e) {
    IDA_FAIL(e == ENOMEM ? IDA_E_NOMEM : IDA_E_IO, "cannot %s %s: %s%s", what, path, strerror(e), hint(e));
}

/* Opens a regular file for reading; a pipe or device in its place is refused, not waited for. */
static ida_status open_regular(const char *path, int *fd, int64_t *size) {
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0) {
        int e = errno;
        IDA_FAIL(IDA_E_IO, "cannot open %s: %s%s", path, strerror(e), e == ENOENT ? "; check the path" : "");
    }
    struct stat st;
    if (fstat(f, &st) != 0) {
        int e = errno;
        close(f);
        return io_error("examine", path, e);
    }
    if (!S_ISREG(st.st_mode)) {
        close(f);
        IDA_FAIL(IDA_E_IO, "cannot read %s: it is %s, not a regular file", path,
                 S_ISDIR(st.st_mode) ? "a folder" : "a device or pipe");
    }
    *fd = f;
    *size = st.st_size;
    return IDA_OK;
}

ida_status ida_map_open(const char *path, ida_map *m) {
    int fd;
    int64_t size;
    IDA_TRY(open_regular(path, &fd, &size));
    void *p = NULL;
    int e = 0;
    if (size > 0) {
        p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) e = errno;
    }
    close(fd);
    if (e != 0) return io_error("map", path, e);
    *m = (ida_map){p, size};
    return IDA_OK;
}

void ida_map_close(ida_map *m) {
    if (m->data) munmap((void *)(uintptr_t)m->data, (size_t)m->size);
    *m = (ida_map){0};
}

/* Reads up to n bytes, fewer only at the end of the file; -1 with errno on failure. */
static int64_t read_full(int fd, void *p, int64_t n) {
    int64_t done = 0;
    while (done < n) {
        int64_t want = n - done > (1 << 30) ? (1 << 30) : n - done;
        ssize_t r = read(fd, (char *)p + done, (size_t)want);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return -1;
        if (r == 0) break;
        done += r;
    }
    return done;
}

static int write_full(int fd, const void *p, size_t n) {
    const char *c = p;
    while (n > 0) {
        ssize_t r = write(fd, c, n > (1u << 30) ? (1u << 30) : n);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return errno;
        if (r == 0) return ENOSPC;
        c += r;
        n -= (size_t)r;
    }
    return 0;
}

/* whole NULL: a file of more than max_bytes is refused. */
static ida_status read_most(const char *path, int64_t max_bytes, char **data, int64_t *size, bool *whole) {
    int fd;
    int64_t n, got = 0;
    IDA_TRY(open_regular(path, &fd, &n));
    char *p = NULL;
    ida_status st = IDA_OK;
    if (n > max_bytes && !whole)
        IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: %lld bytes is more than the %lld this kind of file may have", path, (long long)n,
                      (long long)max_bytes);
    if (whole) *whole = n <= max_bytes;
    if (n > max_bytes) n = max_bytes;
    IDA_TRY_GOTO(IDA_ALLOC(p, n + 1, path));
    got = read_full(fd, p, n);
    if (got < 0) {
        st = io_error("read", path, errno);
        goto out;
    }
    p[got] = '\0';
    *data = p;
    *size = got;
    p = NULL;
out:
    ida_free(p);
    close(fd);
    return st;
}

ida_status ida_read_file(const char *path, int64_t max_bytes, char **data, int64_t *size) {
    return read_most(path, max_bytes, data, size, NULL);
}

ida_status ida_read_front(const char *path, int64_t max_bytes, char **data, int64_t *size, bool *whole) {
    return read_most(path, max_bytes, data, size, whole);
}

struct ida_writer {
    char *path, *tmp;
    int fd;
    size_t used;
    ida_status status; /* the first failure; every later call repeats it */
    char buffer[BUFFER_BYTES];
};

static ida_status fsync_parent(const char *path) {
    char *dir = ida_strdup(path);
    IDA_FAIL_IF(!dir, IDA_E_NOMEM, "out of memory for a path");
    char *slash = strrchr(dir, '/');
    if (slash == dir) slash++;
    if (slash) *slash = '\0';
    ida_status st = ida_fsync_dir(slash ? dir : ".");
    ida_free(dir);
    return st;
}

/* Where the bytes must really go: through a link to its target; a device or pipe cannot be replaced by a rename. */
static ida_status real_target(const char *path, char **target) {
    struct stat st;
    char *t = NULL;
    if (lstat(path, &st) == 0) {
        if (S_ISLNK(st.st_mode)) {
            t = realpath(path, NULL);
            if (!t) return io_error("write", path, errno);
            if (stat(t, &st) != 0) {
                int e = errno;
                free(t);
                return io_error("write", path, e);
            }
        }
        if (!S_ISREG(st.st_mode)) {
            free(t);
            IDA_FAIL(IDA_E_IO, "cannot write %s: it is %s, not a regular file", path,
                     S_ISDIR(st.st_mode) ? "a folder" : "a device or pipe");
        }
    }
    if (!t) t = ida_strdup(path);
    IDA_FAIL_IF(!t, IDA_E_NOMEM, "out of memory for a path");
    *target = t;
    return IDA_OK;
}

ida_status ida_writer_open(const char *path, ida_writer **out) {
    static _Atomic unsigned counter;
    ida_writer *w = NULL;
    char *target = NULL;
    IDA_TRY(real_target(path, &target));
    ida_status st = IDA_ALLOC(w, 1, "a write buffer");
    if (st != IDA_OK) {
        ida_free(target);
        return st;
    }
    w->path = target;
    w->used = 0;
    w->status = IDA_OK;
    w->fd = -1;
    w->tmp = ida_asprintf("%s" TEMPORARY "%ld-%u", target, (long)getpid(), atomic_fetch_add(&counter, 1));
    if (!w->tmp) st = ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "out of memory for a path");
    if (st == IDA_OK) {
        w->fd = open(w->tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (w->fd < 0) st = io_error("create", w->tmp, errno);
    }
    if (st != IDA_OK) {
        ida_free(w->tmp);
        ida_free(w->path);
        ida_free(w);
        return st;
    }
    *out = w;
    return IDA_OK;
}

static ida_status flush_writer(ida_writer *w) {
    if (w->status != IDA_OK || w->used == 0) return w->status;
    int e = write_full(w->fd, w->buffer, w->used);
    w->used = 0;
    if (e != 0) w->status = io_error("write", w->path, e);
    return w->status;
}

ida_status ida_writer_put(ida_writer *w, const void *p, size_t n) {
    if (w->status != IDA_OK) return w->status;
    if (n > sizeof w->buffer - w->used) IDA_TRY(flush_writer(w));
    if (n >= sizeof w->buffer) {
        int e = write_full(w->fd, p, n);
        if (e != 0) w->status = io_error("write", w->path, e);
        return w->status;
    }
    if (n > 0) memcpy(w->buffer + w->used, p, n);
    w->used += n;
    return IDA_OK;
}

ida_status ida_writer_seek(ida_writer *w, int64_t offset) {
    IDA_TRY(flush_writer(w));
    if (lseek(w->fd, offset, SEEK_SET) < 0) w->status = io_error("seek in", w->path, errno);
    return w->status;
}

static void free_writer(ida_writer *w) {
    ida_free(w->tmp);
    ida_free(w->path);
    ida_free(w);
}

void ida_writer_abort(ida_writer *w) {
    if (!w) return;
    close(w->fd);
    unlink(w->tmp);
    free_writer(w);
}

ida_status ida_writer_commit(ida_writer *w) {
    ida_status st = flush_writer(w);
    if (st == IDA_OK && fsync(w->fd) != 0) st = io_error("write", w->path, errno);
    if (close(w->fd) != 0 && st == IDA_OK) st = io_error("write", w->path, errno);
    if (st == IDA_OK && rename(w->tmp, w->path) != 0) st = io_error("rename to", w->path, errno);
    if (st != IDA_OK) unlink(w->tmp);
    else st = fsync_parent(w->path);
    free_writer(w);
    return st;
}

ida_status ida_write_file(const char *path, const void *p, size_t n) {
    ida_writer *w = NULL;
    IDA_TRY(ida_writer_open(path, &w));
    ida_status st = ida_writer_put(w, p, n);
    if (st != IDA_OK) {
        ida_writer_abort(w);
        return st;
    }
    return ida_writer_commit(w);
}

struct ida_lines {
    char *path;
    int fd;
};

/* Cuts the file after its last newline. */
static int cut_torn_tail(int fd, int64_t size) {
    char block[4096];
    int64_t end = size;
    while (end > 0) {
        int64_t start = end > (int64_t)sizeof block ? end - (int64_t)sizeof block : 0;
        ssize_t n = pread(fd, block, (size_t)(end - start), start);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        for (ssize_t i = n; i > 0; i--) {
            if (block[i - 1] != '\n') continue;
            return start + i == size || ftruncate(fd, start + i) == 0 ? 0 : errno;
        }
        end = start;
    }
    return size == 0 || ftruncate(fd, 0) == 0 ? 0 : errno;
}

ida_status ida_lines_open(const char *path, ida_lines **out) {
    ida_lines *l = NULL;
    IDA_TRY(IDA_CALLOC(l, 1, "a log"));
    l->path = ida_strdup(path);
    l->fd = l->path ? open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666) : -1;
    struct stat st;
    int e = 0;
    if (!l->path) e = ENOMEM;
    else if (l->fd < 0 || fstat(l->fd, &st) != 0) e = errno;
    else if (!S_ISREG(st.st_mode)) e = EINVAL;
    else e = cut_torn_tail(l->fd, st.st_size);
    if (e != 0) {
        ida_lines_close(l);
        return io_error("append to", path, e);
    }
    *out = l;
    return IDA_OK;
}

ida_status ida_lines_add(ida_lines *l, const char *line) {
    size_t n = strlen(line);
    IDA_FAIL_IF(memchr(line, '\n', n) != NULL, IDA_E_ARG, "%s: a log line must not hold a newline", l->path);
    struct stat st;
    if (fstat(l->fd, &st) != 0) return io_error("append to", l->path, errno);
    char *text = NULL;
    IDA_TRY(IDA_ALLOC(text, (int64_t)n + 1, "a log line"));
    memcpy(text, line, n);
    text[n] = '\n';
    int e = write_full(l->fd, text, n + 1);
    ida_free(text);
    if (e == 0) return IDA_OK;
    if (ftruncate(l->fd, st.st_size) != 0) ida_log("%s: a torn line is left at the end: %s", l->path, strerror(errno));
    return io_error("append to", l->path, e);
}

void ida_lines_close(ida_lines *l) {
    if (!l) return;
    if (l->fd >= 0) close(l->fd);
    ida_free(l->path);
    ida_free(l);
}

/* Does the part of a path that ends before `end` end in the component "."? It names no folder of its own. */
static bool ends_in_dot(const char *path, size_t end) {
    return end > 0 && path[end - 1] == '.' && (end == 1 || path[end - 2] == '/');
}

/* `made`: the length of the part of `dir` that names the first folder of an unbroken row of new ones that ends in dir itself. */
void ida_rmdirs(const char *dir, size_t made) {
    char *p = made > 0 ? ida_strdup(dir) : NULL;
    if (!p) return;
    for (size_t n = strlen(p); n >= made; n--) {
        if (p[n] != '/' && p[n] != '\0') continue;
        p[n] = '\0';
        if (p[n - 1] != '/' && !ends_in_dot(p, n) && rmdir(p) != 0) break;
    }
    ida_free(p);
}

/* *gone: a folder on the way was not there any more. */
static ida_status make_folders(const char *dir, size_t *made, bool *gone) {
    *made = 0;
    *gone = false;
    char *p = ida_strdup(dir);
    IDA_FAIL_IF(!p, IDA_E_NOMEM, "out of memory for a path");
    ida_status st = IDA_OK;
    size_t last = 0; /* the newest folder made */
    for (char *c = p + (*p == '/'); st == IDA_OK; c++) {
        if (*c != '/' && *c != '\0') continue;
        char saved = *c;
        *c = '\0';
        if (*p && mkdir(p, 0777) == 0) {
            last = (size_t)(c - p);
            if (*made == 0) *made = last;
            st = fsync_parent(p);
        } else if (*p && c[-1] != '/') { /* "a//b" and "a/" name nothing new */
            int e = errno;
            *gone = e == ENOENT;
            if (!(e == EEXIST || e == EROFS || e == EACCES) || !ida_is_dir(p)) st = io_error("create the folder", p, e);
            else if (!ends_in_dot(p, (size_t)(c - p))) *made = 0;
        }
        *c = saved;
        if (saved == '\0') break;
    }
    if (st != IDA_OK && *made > 0) {
        p[last] = '\0';
        ida_rmdirs(p, *made);
        *made = 0;
    }
    ida_free(p);
    return st;
}

/* Another process may take back, empty, a folder that was just found on the way: then once more from the front. */
ida_status ida_mkdirs_made(const char *dir, size_t *made) {
    bool gone;
    ida_status st = make_folders(dir, made, &gone);
    return st != IDA_OK && gone ? make_folders(dir, made, &gone) : st;
}

ida_status ida_mkdirs(const char *dir) {
    size_t made;
    return ida_mkdirs_made(dir, &made);
}

ida_status ida_fsync_dir(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return io_error("open the folder", dir, errno);
    int e = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    if (e != 0 && e != EINVAL && e != ENOTSUP) return io_error("fsync the folder", dir,
                                                               e); /* those two: it has no fsync for folders */
    return IDA_OK;
}

/* Removes `name` inside the open folder `at`, never following links. Returns an errno. */
static int remove_at(int at, const char *name, int depth) {
    if (unlinkat(at, name, 0) == 0 || errno == ENOENT) return 0;
    if (errno != EISDIR && errno != EPERM) return errno;
    if (depth > 64) return ELOOP;
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno;
    DIR *d = fdopendir(fd);
    if (!d) {
        int e = errno;
        close(fd);
        return e;
    }
    int e = 0;
    const struct dirent *en;
    while (e == 0 && (en = readdir(d)) != NULL)
        if (strcmp(en->d_name, ".") != 0 && strcmp(en->d_name, "..") != 0) e = remove_at(dirfd(d), en->d_name, depth + 1);
    closedir(d);
    if (e == 0 && unlinkat(at, name, AT_REMOVEDIR) != 0 && errno != ENOENT) e = errno;
    return e;
}

ida_status ida_remove_tree(const char *dir) {
    int e = remove_at(AT_FDCWD, dir, 0);
    if (e != 0) return io_error("remove", dir, e);
    return IDA_OK;
}

bool ida_ends_with(const char *s, size_t n, const char *tail) {
    size_t m = strlen(tail);
    return n >= m && memcmp(s + n - m, tail, m) == 0;
}

bool ida_is_temporary(const char *name) { return strstr(name, TEMPORARY) != NULL; }

bool ida_exists(const char *path) { return access(path, F_OK) == 0; }

bool ida_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *ida_path_join(const char *a, const char *b) {
    size_t n = strlen(a);
    return ida_asprintf("%s%s%s", a, n > 0 && a[n - 1] != '/' ? "/" : "", b);
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

ida_status ida_list_dir(const char *dir, char ***names, int64_t *n) {
    DIR *d = opendir(dir);
    if (!d) return io_error("list the folder", dir, errno);
    char **list = NULL;
    void *p = NULL;
    int64_t count = 0, cap = 0;
    ida_status st = IDA_OK;
    for (;;) {
        errno = 0;
        const struct dirent *en = readdir(d);
        if (!en) {
            if (errno != 0) st = io_error("list the folder", dir, errno);
            break;
        }
        if (strcmp(en->d_name, ".") == 0 || strcmp(en->d_name, "..") == 0) continue;
        IDA_TRY_GOTO(ida_grow(&p, &cap, count + 1, sizeof *list, "a file list"));
        list = p;
        list[count] = ida_strdup(en->d_name);
        if (!list[count]) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for the file list of %s", dir);
        count++;
    }
out:
    closedir(d);
    if (st != IDA_OK) {
        ida_names_free(list, count);
        return st;
    }
    if (count > 1) qsort(list, (size_t)count, sizeof *list, by_name);
    *names = list;
    *n = count;
    return IDA_OK;
}

void ida_names_free(char **names, int64_t n) {
    for (int64_t i = 0; i < n; i++) ida_free(names[i]);
    ida_free(names);
}

ida_status ida_hash_file(const char *path, uint64_t *hash, int64_t *size) {
    int fd;
    int64_t total = 0, got;
    IDA_TRY(open_regular(path, &fd, &total));
    char *block = NULL;
    ida_status st = IDA_OK;
    XXH3_state_t *x = XXH3_createState();
    if (!x) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a checksum");
    IDA_TRY_GOTO(IDA_ALLOC(block, BUFFER_BYTES, "a read buffer"));
    XXH3_64bits_reset(x);
    total = 0;
    while ((got = read_full(fd, block, BUFFER_BYTES)) > 0) {
        XXH3_64bits_update(x, block, (size_t)got);
        total += got;
    }
    if (got < 0) {
        st = io_error("read", path, errno);
        goto out;
    }
    *hash = XXH3_64bits_digest(x);
    *size = total;
out:
    ida_free(block);
    XXH3_freeState(x);
    close(fd);
    return st;
}
