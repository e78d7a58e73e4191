/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <signal.h>
#include <unistd.h>

static volatile int cancel;
static const char *volatile doomed, *volatile doomed_model;

static void on_signal(int number)
{
    if (cancel) {
        if (doomed) unlink(doomed);
        if (doomed_model) unlink(doomed_model);
        _exit(130);
    }
    cancel = number;
}

void wr_cli_signals_init(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction before;
    if (sigaction(SIGHUP, NULL, &before) != 0 || before.sa_handler != SIG_IGN) /* nohup: the command outlives its terminal */
        sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

const volatile int *wr_cli_cancel(void) { return &cancel; }
void wr_cli_cancel_reset(void) { cancel = 0; }
void wr_cli_doomed_file(const char *path) { doomed = path; }
void wr_cli_doomed_model(const char *path) { doomed_model = path; }
