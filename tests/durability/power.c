/* Preloaded into a server: makes syncs as slow as a bad disk's, and notes what each has made safe.
 *
 * FOREBAY_SYNC_MS     each sync takes so long
 * FOREBAY_SYNC_NOTES  folder: for each file that was synced one of its name, with the size that is safe
 *
 * A machine that loses power keeps of a file what a finished sync had covered, and maybe more. Cutting
 * the file there is the worst that may happen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void note(int fd, off_t size) {
    char link[64], path[PATH_MAX], into[PATH_MAX * 2], text[32];
    const char *folder = getenv("FOREBAY_SYNC_NOTES");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!folder || length < 0) return;
    path[length] = 0;
    const char *name = strrchr(path, '/');
    snprintf(into, sizeof into, "%s/%s", folder, name ? name + 1 : path);
    int file = open(into, O_WRONLY | O_CREAT, 0600);
    int written = snprintf(text, sizeof text, "%020lld", (long long)size);
    if (file >= 0 && pwrite(file, text, written, 0) == written) close(file);
}

static int sync_as(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *wait_ms = getenv("FOREBAY_SYNC_MS");
    struct stat before;
    int known = fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
    if (wait_ms) usleep(atoi(wait_ms) * 1000);
    int result = real(fd);
    if (result == 0 && known) note(fd, before.st_size);
    return result;
}

int fsync(int fd) { return sync_as("fsync", fd); }
int fdatasync(int fd) { return sync_as("fdatasync", fd); }
