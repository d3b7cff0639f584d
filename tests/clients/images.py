"""Loops over small pictures: a GAN with two optimizers, a VAE with a summed loss, a siamese network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import learnscope as ls
from clients.account import Account

REAL, FAKE, CODE = 1.0, 0.0, 6


def pictures(count: int) -> Tensor:
    """8 × 8 pictures with a bright spot somewhere, in [-1, 1]."""
    grid = torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij"))
    middle = torch.rand(count, 2, 1, 1) * 8
    return 2 * torch.exp(-(grid - middle).square().sum(1, keepdim=True) / 4) - 1


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(CODE, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
            nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip

    def forward(self, noise: Tensor) -> Tensor:
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(8, 8, 2, 1, 0, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(8, 1, 3, 1, 0, bias=False), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, picture: Tensor) -> Tensor:
        return self.main(picture).view(-1)


def gan(account: Account, *, clock: str | None = None, listed: str = "DG") -> nn.Module:
    netG, netD = Generator(), Discriminator()
    criterion = nn.BCELoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizers = {"D": optimizerD, "G": optimizerG}
    nets = nn.ModuleDict({"netD": netD, "netG": netG})
    clocks = {} if clock is None else {"clock": optimizers[clock]}
    account.watch(nets, [optimizers[name] for name in listed], **clocks)
    for _ in range(4):
        netD.zero_grad()
        real = pictures(6)
        errD_real = criterion(netD(real), torch.full((6,), REAL))
        errD_real.backward()
        fake = netG(torch.randn(6, CODE, 1, 1))
        errD_fake = criterion(netD(fake.detach()), torch.full((6,), FAKE))
        errD_fake.backward()
        errD = errD_real + errD_fake
        account.given(optimizerD)
        optimizerD.step()

        netG.zero_grad()
        errG = criterion(netD(fake), torch.full((6,), REAL))  # for the generator, fakes are real
        errG.backward()
        account.given(optimizerG)
        optimizerG.step()
        account.took(loss_D=errD.item(), loss_G=errG.item())
        account.log(loss_D=errD, loss_G=errG)
    return nets


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 20), nn.Linear(20, 3), nn.Linear(20, 3)
        self.fc3, self.fc4 = nn.Linear(3, 20), nn.Linear(20, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.fc1(x.view(-1, 64)))
        mu, logvar = self.fc21(hidden), self.fc22(hidden)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon_x: Tensor, x: Tensor, mu: Tensor, logvar: Tensor) -> Tensor:
    """Summed over entries and examples."""
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def vae(account: Account) -> nn.Module:
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    account.watch(model, optimizer)
    loader = DataLoader(TensorDataset((pictures(40) + 1) / 2), batch_size=8, shuffle=True)
    model.train()
    for _ in range(2):
        for (data,) in loader:
            optimizer.zero_grad()
            recon_batch, mu, logvar = model(data)
            loss = loss_function(recon_batch, data, mu, logvar)
            loss.backward()
            account.given(optimizer)
            optimizer.step()
            account.took(loss=loss.item())
            account.log(loss=loss)
        if account.w is not None:
            account.w.end_epoch()
    return model


class SiameseNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 10))
        self.fc = nn.Sequential(nn.Linear(20, 12), nn.ReLU(inplace=True), nn.Linear(12, 1))
        self.sigmoid = nn.Sigmoid()

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return self.sigmoid(self.fc(torch.cat([self.cnn(input1), self.cnn(input2)], 1)))


class SamePictures(ls.Task):
    """(img1, img2, target): whether both pictures are of one kind, as a probability."""

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0], batch[1]).squeeze(1)

    def targets(self, batch: Any) -> Tensor:
        return batch[2].float()

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy(logits, targets, reduction="none")


def siamese(account: Account, evaluated: list[float]) -> nn.Module:
    model, criterion = SiameseNetwork(), nn.BCELoss()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    first, second = pictures(48), pictures(48)
    pairs = TensorDataset(first, second, (first[:, 0].flatten(1).argmax(1) < 32).float())
    held_out = TensorDataset(*(tensor[:16] for tensor in pairs.tensors))
    holdout = {"holdout": held_out, "task": SamePictures(), "probes": [ls.Holdout(every=1)]}
    account.watch(model, optimizer, **holdout)
    for _ in range(2):
        model.train()
        for images_1, images_2, targets in DataLoader(pairs, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            loss = criterion(model(images_1, images_2).squeeze(), targets)
            loss.backward()
            account.given(optimizer)
            optimizer.step()
            account.took(loss=loss.item())
            account.log(loss=loss)
            model.eval()
            with torch.no_grad():
                evaluated.append(criterion(model(*held_out.tensors[:2]).squeeze(), held_out.tensors[2]).item())
            model.train()
        scheduler.step()
    return model
