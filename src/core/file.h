/* file.h - files that are untrusted on the way in and never half-written on the way out. */
#ifndef IDA_CORE_FILE_H
#define IDA_CORE_FILE_H

#include "core/status.h"

/* Read-only map of a whole regular file. data is NULL when size is 0. Touching it after another process cut the file short
 * raises SIGBUS: published files are replaced, never changed in place. */
typedef struct ida_map { const uint8_t *data; int64_t size; } ida_map;
ida_status ida_map_open(const char *path, ida_map *m);
void ida_map_close(ida_map *m);

/* Whole file into malloc'd memory, NUL-terminated (not counted); refuses more than max_bytes. Free with ida_free. */
ida_status ida_read_file(const char *path, int64_t max_bytes, char **data, int64_t *size);
/* The same of its first max_bytes; *whole: that was all. */
ida_status ida_read_front(const char *path, int64_t max_bytes, char **data, int64_t *size, bool *whole);

/* A file that appears under its name only when complete: written to a sibling "<path>.tmp-<pid>-<n>", then fsync, rename,
 * fsync of the folder. A link is followed; a device, pipe or folder in its place is refused. Any failure (ENOSPC, EIO, ...)
 * is reported and leaves the old file as it was. */
typedef struct ida_writer ida_writer;
ida_status ida_writer_open(const char *path, ida_writer **w);
ida_status ida_writer_put(ida_writer *w, const void *p, size_t n);     /* buffered */
ida_status ida_writer_seek(ida_writer *w, int64_t offset);             /* flushes; for headers known last */
ida_status ida_writer_commit(ida_writer *w);                           /* frees w whatever the result */
void ida_writer_abort(ida_writer *w);                                  /* removes the temporary; NULL is legal */
ida_status ida_write_file(const char *path, const void *p, size_t n);  /* open, put, commit */

/* Append-only log of whole lines. Opening cuts a torn last line (no newline) off. */
typedef struct ida_lines ida_lines;
ida_status ida_lines_open(const char *path, ida_lines **l);
ida_status ida_lines_add(ida_lines *l, const char *line); /* one write(2) with the newline */
void ida_lines_close(ida_lines *l);

ida_status ida_mkdirs(const char *dir);                       /* like mkdir -p; a failure leaves none that it made */
/* The same for who may fail later: *made tells ida_rmdirs what to take back, 0 = dir was there. A "." in dir changes nothing; a new
 * folder that is left by ".." again ("new/../x") stays behind, here and in a failure of ida_mkdirs. */
ida_status ida_mkdirs_made(const char *dir, size_t *made);
void ida_rmdirs(const char *dir, size_t made);                /* those that were made, as far as they are empty */
ida_status ida_fsync_dir(const char *dir);
ida_status ida_remove_tree(const char *dir);                  /* no error when absent */
bool ida_exists(const char *path);
bool ida_is_dir(const char *path);
bool ida_ends_with(const char *s, size_t n, const char *tail); /* the first n bytes of s */
bool ida_is_temporary(const char *name);                      /* of a file that ida_writer had not yet finished */
char *ida_path_join(const char *a, const char *b);            /* malloc'd, NULL on out of memory */
/* Names in a folder, sorted by strcmp, without "." and ".."; free with ida_names_free. */
ida_status ida_list_dir(const char *dir, char ***names, int64_t *n);
void ida_names_free(char **names, int64_t n);
/* XXH3-64 of a whole file, streamed. */
ida_status ida_hash_file(const char *path, uint64_t *hash, int64_t *size);

#endif
